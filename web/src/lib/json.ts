// JSON with exact whole numbers: a seed may have 64 bits, a JavaScript number has 53. Numbers that do not fit are read
// as bigints and written as digits.

import { hasUnknown, markUnknown } from './unknown';

const LONG = /(^|[:[,\s])-?\d{16,}\s*([,}\]]|$)/; // a cheap check: most texts have no such number
const NUMBERS = /(^|[:[,\s])(-?\d{16,})(?=\s*(?:[,}\]]|$))/g;
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
  let marks = 0;
  const marked = (digits: string): string => (typeof whole(digits) === 'bigint' ? (marks++, `"${mark}${digits}"`) : digits);
  let value: unknown;
  try {
    // Where such digits are inside of a string, the mark ends it, and what follows is no JSON.
    value = JSON.parse(text.replace(NUMBERS, (_, before: string, digits: string) => before + marked(digits)));
  } catch {
    marks = 0;
    value = JSON.parse(text.replace(VALUES, marked));
  }
  const root = [value];
  restore(root, mark, marks);
  return root[0];
}

/** Replaces the marked texts in a value, so many, by their numbers. Returns how many are left. */
function restore(value: object, mark: string, marks: number): number {
  const fields = value as Record<string, unknown>;
  for (const name in fields) {
    if (marks === 0) return 0;
    const each = fields[name];
    if (typeof each === 'object' && each !== null) marks = restore(each, mark, marks);
    else if (typeof each === 'string' && each.startsWith(mark)) {
      fields[name] = BigInt(each.slice(mark.length));
      marks--;
    }
  }
  return marks;
}

export function stringify(value: unknown): string {
  if (typeof value === 'bigint') return String(value);
  if (Array.isArray(value)) return `[${value.map((each) => stringify(each ?? null)).join(',')}]`;
  if (typeof value !== 'object' || value === null) return JSON.stringify(value);
  const entries = Object.entries(value).filter(([, each]) => each !== undefined);
  return `{${entries.map(([name, each]) => `${JSON.stringify(name)}:${stringify(each)}`).join(',')}}`;
}
