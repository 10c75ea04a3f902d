// Text from a model is data. This splits it into segments that a page can show as plain text. Invisible characters,
// control characters and changes of the writing direction are replaced by their names.

export type Look = 'plain' | 'space' | 'newline' | 'code' | 'byte';

export interface Segment {
  text: string;
  look: Look;
  title?: string;
}

const NAMES: Record<number, string> = {
  0x00a0: 'no-break space', 0x00ad: 'soft hyphen', 0x061c: 'Arabic letter mark', 0x200b: 'zero-width space',
  0x200c: 'zero-width non-joiner', 0x200d: 'zero-width joiner', 0x200e: 'left-to-right mark', 0x200f: 'right-to-left mark',
  0x2028: 'line separator', 0x2029: 'paragraph separator', 0x202a: 'left-to-right embedding', 0x202b: 'right-to-left embedding',
  0x202c: 'end of direction', 0x202d: 'left-to-right override', 0x202e: 'right-to-left override', 0x2060: 'word joiner',
  0x2066: 'left-to-right isolate', 0x2067: 'right-to-left isolate', 0x2068: 'first-strong isolate', 0x2069: 'end of isolate',
  0x2800: 'blank braille', 0x3000: 'wide space', 0x3164: 'Hangul filler', 0xfeff: 'byte-order mark', 0xfffd: 'replacement character',
};
const BLANK = new Set([0x115f, 0x1160, 0x2800, 0x3164, 0xffa0]); // letters by category that look blank
const HIDDEN = /^[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]$/u;
const OTHER_SPACE = /^\p{Zs}$/u;
const MARK = /^\p{M}$/u;
const PICTURE = /^\p{Extended_Pictographic}$/u;
const MOST_MARKS = 3;

const known = new Map<string, readonly Segment[]>(); // a cache: few different pieces occur very often
const MOST_KNOWN = 20_000;
const LONGEST_KNOWN = 64;

/** Returns the segments of a piece. `bytes` are the token's bytes in hexadecimal; they distinguish the byte C3 from
 *  the text `<0xC3>`. */
export function visible(piece: string, bytes?: string): readonly Segment[] {
  if (piece.length > LONGEST_KNOWN) return segments(piece, bytes);
  const key = `${bytes ?? ''}:${piece}`;
  let made = known.get(key);
  if (!made) {
    made = segments(piece, bytes);
    if (known.size >= MOST_KNOWN) known.clear();
    known.set(key, made);
  }
  return made;
}

function segments(piece: string, bytes?: string): Segment[] {
  const asBytes = partialBytes(piece, bytes);
  if (asBytes) return asBytes;
  const made: Segment[] = [];
  const characters = Array.from(piece);
  let marks = 0;
  characters.forEach((character, place) => {
    const code = character.codePointAt(0)!;
    const before = characters[place - 1];
    marks = MARK.test(character) ? marks + 1 : 0;
    if (character === ' ') add(made, { text: '·', look: 'space', title: 'space' });
    else if (character === '\n') add(made, { text: '↵', look: 'newline', title: 'new line' });
    else if (character === '\t') add(made, { text: '⇥', look: 'space', title: 'tab' });
    else if (joinsPictures(code, before, characters[place + 1])) add(made, { text: character, look: 'plain' });
    else if (marks > 0 && before === undefined) add(made, { text: `◌${character}`, look: 'plain' });
    else if (marks > MOST_MARKS || HIDDEN.test(character) || BLANK.has(code) || OTHER_SPACE.test(character)) add(made, named(code));
    else add(made, { text: character, look: 'plain' });
  });
  return made;
}

/** Returns the segments as one string with plain spaces, for labels and screen readers. */
export function spoken(piece: string, bytes?: string): string {
  return visible(piece, bytes).map((each) => (each.look === 'space' && each.text === '·' ? ' ' : each.text)).join('');
}

export function shown(piece: string, bytes?: string): string {
  return visible(piece, bytes).map((each) => each.text).join('');
}

function named(code: number): Segment {
  const number = `U+${code.toString(16).toUpperCase().padStart(4, '0')}`;
  if (code < 0x20) return { text: String.fromCharCode(0x2400 + code), look: 'code', title: `${number} control character` };
  if (code === 0x7f) return { text: '␡', look: 'code', title: `${number} delete` };
  return { text: number, look: 'code', title: NAMES[code] ? `${number} ${NAMES[code]}` : number };
}

function joinsPictures(code: number, before: string | undefined, next: string | undefined): boolean {
  if (code === 0xfe0f) return before !== undefined && PICTURE.test(before);
  if (code !== 0x200d || before === undefined || next === undefined) return false;
  return (PICTURE.test(before) || before.codePointAt(0) === 0xfe0f) && PICTURE.test(next);
}

function partialBytes(piece: string, bytes: string | undefined): Segment[] | null {
  if (!/<0x[0-9A-F]{2}>/.test(piece)) return null;
  if (bytes !== undefined && hex(piece) === bytes) return null; // the text itself, not a byte
  return piece.split(/(<0x[0-9A-F]{2}>)/).filter(Boolean).flatMap((part) => {
    const byte = /^<0x([0-9A-F]{2})>$/.exec(part)?.[1];
    return byte ? [{ text: byte, look: 'byte' as const, title: `byte ${byte}: part of a character` }] : segments(part, hex(part));
  });
}

/** The bytes of a text in UTF-8, as hexadecimal. */
export function hex(text: string): string {
  return Array.from(new TextEncoder().encode(text), (byte) => byte.toString(16).padStart(2, '0')).join('');
}

function add(made: Segment[], next: Segment): void {
  const last = made.at(-1);
  if (last && last.look === next.look && (next.look === 'plain' || next.look === 'space')) last.text += next.text;
  else made.push({ ...next });
}
