// JSON with exact whole numbers: a seed may have 64 bits, a JavaScript number has 53. Numbers that do not fit are read
// as bigints and written as digits.

import { hasUnknown, markUnknown } from './unknown';

const LONG = /(^|[:[,\s])-?\d{16,}\s*([,}\]]|$)/; // a cheap check: most texts have no such number
const VALUES = /"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*/g;

/** Returns the whole number that a text is, or null. */
export function whole(text: string): number | bigint | null {
  const value = Number(text);
  if (!/^-?\d+$/.test(text)) return text.trim() !== '' && Number.isSafeInteger(value) ? value : null;
  return Number.isSafeInteger(value) ? value : BigInt(text);
}

export function parse(text: string): unknown {
  const value = parseExact(text);
  if (hasUnknown(text)) markUnknown(value);
  return value;
}

function parseExact(text: string): unknown {
  if (!LONG.test(text)) return JSON.parse(text);
  let mark = '#';
  while (text.includes(mark)) mark += '#';
  const marked = text.replace(VALUES, (value) => (typeof whole(value) === 'bigint' ? `"${mark}${value}"` : value));
  return JSON.parse(marked, (_, value: unknown) => (typeof value === 'string' && value.startsWith(mark) ? BigInt(value.slice(mark.length)) : value));
}

export function stringify(value: unknown): string {
  if (typeof value === 'bigint') return String(value);
  if (Array.isArray(value)) return `[${value.map((each) => stringify(each ?? null)).join(',')}]`;
  if (typeof value !== 'object' || value === null) return JSON.stringify(value);
  const entries = Object.entries(value).filter(([, each]) => each !== undefined);
  return `{${entries.map(([name, each]) => `${JSON.stringify(name)}:${stringify(each)}`).join(',')}}`;
}
