import { describe, expect, it } from 'vitest';
import { shown, spoken, visible } from '../src/lib/visible';
import { run } from './recorded';

const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}\u00a0\u3164\u2800\u115f]/u;

describe('text from a model', () => {
  it('never brings along what acts or hides', () => {
    const hostile = ['\u202Eevil', '\u2066a\u2069', '\u0000\u001b[31m', 'a\u200bb', '\ufeff', '\u00ad', '\u2028', '\ud800', '\u{e0041}\u{e007f}', '\u3164', '\u2800', '\u00a0', '\u007f', '\r'];
    for (const text of hostile) {
      expect(shown(text)).not.toMatch(HIDDEN);
      expect(spoken(text)).not.toMatch(HIDDEN);
      expect(shown(text).length).toBeGreaterThan(0);
    }
    expect(visible('\u202E')[0]).toEqual({ text: 'U+202E', look: 'code', title: 'U+202E right-to-left override' });
    expect(visible('\u001b')[0]!.text).toBe('␛');
  });
  it('leaves markup as text', () => {
    const text = '<script>alert(1)</script><img src=x onerror=y>';
    expect(visible(text)).toContainEqual({ text: '<script>alert(1)</script><img', look: 'plain' });
    expect(spoken(text)).toBe(text);
  });
  it('makes spaces, new lines and tabs visible', () => {
    expect(shown('  a b\n\t')).toBe('··a·b↵⇥');
  });
  it('tells a byte from a text that looks like one', () => {
    expect(visible('<0xC3>', 'c3')).toEqual([{ text: 'C3', look: 'byte', title: 'byte C3: part of a character' }]);
    expect(visible('<0xC3>', '3c307843333e')).toEqual([{ text: '<0xC3>', look: 'plain' }]);
  });
  it('keeps emoji whole and tames stacks of marks', () => {
    expect(shown('👩‍🚀❤️')).toBe('👩‍🚀❤️');
    expect(shown('\u0301')).toBe('◌\u0301');
    expect(shown(`a${'\u0301'.repeat(9)}`)).toBe(`a${'\u0301'.repeat(3)}${'U+0301'.repeat(6)}`);
  });
  it('shows recorded tokens as they are', () => {
    for (const token of run().tokens) expect(spoken(token.piece, token.bytes).replaceAll('↵', '\n')).toBe(token.piece);
  });
});
