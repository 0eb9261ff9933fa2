// Canonical keys in JavaScript, written from docs/reference/canonical-keys.md and not from the Python code.
//
//     node canonical_keys.mjs FILE
//
// reads vectors and prints what it makes of them, as canonical_child.py does.

import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";

const MAX_DEPTH = 100;

class Refused extends Error {
  constructor(path) {
    super(`refused at ${path}`);
    this.path = path;
  }
}

// Code points, not UTF-16 units: the order of UTF-8.
const byCodePoint = (a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b));

function text(value, path) {
  if (!value.isWellFormed()) throw new Refused(path);
  return JSON.stringify(value.normalize("NFC"));
}

function tagged(tag, written) {
  return `{"$${tag}":${written}}`;
}

// The shortest digits that read back, with a point or an exponent so that a float is never written like an integer.
function float(described, path) {
  const value = Number(described);
  if (!Number.isFinite(value) || described === "nan") throw new Refused(path);
  if (value === 0) return "0.0";
  const [, sign, first, rest = "", exponent] = /^(-?)(\d)(?:\.(\d+))?e([+-]\d+)$/.exec(value.toExponential());
  const digits = first + rest;
  const power = Number(exponent);
  if (power < -4 || power >= 16) {
    const fraction = rest ? `.${rest}` : "";
    return `${sign}${first}${fraction}e${power < 0 ? "-" : "+"}${String(Math.abs(power)).padStart(2, "0")}`;
  }
  if (power < 0) return `${sign}0.${"0".repeat(-power - 1)}${digits}`;
  const whole = digits.slice(0, power + 1).padEnd(power + 1, "0");
  return `${sign}${whole}.${digits.slice(power + 1) || "0"}`;
}

function decimal(described, path) {
  const parts = /^([+-]?)(\d*)(?:\.(\d*))?(?:E([+-]?\d+))?$/i.exec(described);
  if (!parts) throw new Refused(path);
  const [, sign, whole, fraction = "", exponent = "0"] = parts;
  const digits = (whole + fraction).replace(/^0+/, "");
  const significant = digits.replace(/0+$/, "");
  if (!significant) return `"0E0"`;
  const power = BigInt(exponent) - BigInt(fraction.length) + BigInt(digits.length - significant.length);
  return `"${sign === "-" ? "-" : ""}${significant}E${power}"`;
}

function instant(described, path) {
  const parts =
    /^(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{6}))?([+-])(\d\d):(\d\d)(?::(\d\d))?$/.exec(described);
  if (!parts) throw new Refused(path);
  const [, year, month, day, hour, minute, second, micro = "000000", sign, ...offset] = parts;
  const wall = new Date(0);
  wall.setUTCFullYear(Number(year), Number(month) - 1, Number(day));
  wall.setUTCHours(Number(hour), Number(minute), Number(second));
  const [hours, minutes, seconds] = offset.map((part) => Number(part ?? 0));
  const away = (hours * 3600 + minutes * 60 + seconds) * (sign === "-" ? -1 : 1);
  const utc = new Date(wall.getTime() - away * 1000);
  return `"${utc.toISOString().replace(/\.\d{3}Z$/, "")}.${micro}Z"`;
}

function timeOfDay(described, path) {
  const parts = /^(\d\d:\d\d:\d\d)(?:\.(\d{6}))?$/.exec(described);
  if (!parts) throw new Refused(path);
  return `"${parts[1]}.${parts[2] ?? "000000"}"`;
}

function list(items, path, depth) {
  return `[${items.map((item, index) => write(item, `${path}[${index}]`, depth + 1)).join(",")}]`;
}

function object(entries, path, depth) {
  const written = new Map();
  for (const [key, value] of entries) {
    if (!key.isWellFormed()) throw new Refused(`${path} (a key)`);
    const composed = key.normalize("NFC");
    const name = composed.startsWith("$") ? `$${composed}` : composed;
    if (written.has(name)) throw new Refused(`${path}.${composed}`);
    written.set(name, write(value, `${path}.${composed}`, depth + 1));
  }
  const names = [...written.keys()].sort(byCodePoint);
  return `{${names.map((name) => `${JSON.stringify(name)}:${written.get(name)}`).join(",")}}`;
}

function dictionary(entries, path, depth) {
  if (entries.every(([[kind]]) => kind === "text")) {
    return object(entries.map(([[, key], value]) => [key, value]), path, depth);
  }
  const written = new Map();
  for (const [key, value] of entries) {
    const name = write(key, `${path} (a key)`, depth + 1);
    if (written.has(name)) throw new Refused(`${path} (a key)`);
    written.set(name, write(value, `${path}[?]`, depth + 1));
  }
  const names = [...written.keys()].sort(byCodePoint);
  return tagged("dict", `[${names.map((name) => `[${name},${written.get(name)}]`).join(",")}]`);
}

function set(items, path, depth) {
  const texts = new Set(items.map((item) => write(item, `${path}{}`, depth + 1)));
  return tagged("set", `[${[...texts].sort(byCodePoint).join(",")}]`);
}

function write([kind, ...parts], path, depth) {
  if (depth > MAX_DEPTH) throw new Refused(path);
  const [given] = parts;
  switch (kind) {
    case "none":
      return "null";
    case "bool":
      return String(given);
    case "int":
      return String(BigInt(given));
    case "float":
      return float(given, path);
    case "text":
      return text(given, path);
    case "list":
      return list(given, path, depth);
    case "set":
      return set(given, path, depth);
    case "dict":
      return dictionary(given, path, depth);
    case "bytes":
      return tagged("bytes", `"${Buffer.from(given, "hex").toString("base64")}"`);
    case "decimal":
      return tagged("decimal", decimal(given, path));
    case "uuid":
    case "date":
      return tagged(kind, `"${given.toLowerCase()}"`);
    case "path":
      return tagged("path", text(given, path));
    case "datetime":
      return tagged("datetime", instant(given, path));
    case "time":
      return tagged("time", timeOfDay(given, path));
    case "timedelta":
      return tagged("timedelta", String(BigInt(given)));
    case "enum":
      return tagged("enum", `[${text(given, path)},${write(parts[1], `${path}.value`, depth + 1)}]`);
    case "dataclass":
      return tagged("dataclass", `[${text(given, path)},${object(parts[1], path, depth)}]`);
    case "model": {
      const extra = parts[2]?.length ? `,${object(parts[2], path, depth)}` : "";
      return tagged("model", `[${text(given, path)},${object(parts[1], path, depth)}${extra}]`);
    }
    case "nested lists":
      return given === 0 ? "null" : list([["nested lists", given - 1]], path, depth);
    case "self-containing list":
      throw new Refused(`${path}[0]`);
    default:
      throw new Refused(path);
  }
}

function call({ task, namespace, args, kwargs }) {
  const given = list(args, "args", 0);
  const named = object(Object.entries(kwargs), "kwargs", 0);
  return `{"args":${given},"kwargs":${named},"namespace":"${namespace}","task":${text(task, "task_name")},"version":1}`;
}

function refusal(vector) {
  try {
    call({ task: "t", namespace: "task", ...vector });
  } catch (error) {
    if (error instanceof Refused) return error.path;
    throw error;
  }
  return "nowhere";
}

const vectors = JSON.parse(readFileSync(process.argv[2], "utf8"));
const keys = vectors.keys.map((vector) => {
  const written = call(vector);
  const digest = createHash("sha256").update(written, "utf8").digest("hex");
  return { text: written, key: `duly:v1:${vector.namespace}:${digest}` };
});
process.stdout.write(JSON.stringify({ keys, refused: vectors.refused.map(refusal) }));
