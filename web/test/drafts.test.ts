import { describe, expect, it } from 'vitest';
import { guessTold } from '../src/lib/drafts';
import { Forest } from '../src/lib/forest';
import { layoutTree } from '../src/lib/layout';
import { drafts } from './recorded';

describe('guesses', () => {
  it('are told as they were judged, and only where there was one', () => {
    const run = drafts();
    const told = run.tokens.map((token) => guessTold(token.source, token.refused, token.piece));
    expect(told.filter((each) => each === 'proposed by the drafter, accepted by the model')).toHaveLength(run.drafts.accepted);
    const wrong = run.tokens.filter((token) => token.refused);
    expect(wrong.length).toBeGreaterThan(0);
    for (const token of wrong) {
      expect(token.refused!.id).not.toBe(token.id);
      expect(told[token.index]).toContain(`proposed “${token.refused!.text}”, the model chose “${token.piece}”`);
    }
    expect(told.filter(Boolean)).toHaveLength(run.drafts.accepted + wrong.length);
  });
  it('say who guessed, what went with it, and nothing that steers', () => {
    expect(guessTold('sampled', { id: 1, text: '\u202eLyon', by: 'model', dropped: 2 }, ' Paris')).toBe('the draft model proposed “U+202ELyon”, the model chose “ Paris”; 2 more after it were discarded');
  });
  it('are on the chips of the tree, live and whole', () => {
    const run = drafts();
    const { prompt_tokens: _prompt, tokens, tail: _tail, end: _end, beams: _beams, ...summary } = run;
    const [live, whole] = [new Forest(), new Forest()];
    live.apply({ kind: 'run', seq: 1, run: run.id, summary });
    tokens.forEach((token, place) => live.apply({ kind: 'token', seq: place + 2, run: run.id, token }));
    whole.whole(run);
    for (const forest of [live, whole]) {
      const view = { run: forest.runs.get(run.id)!, focus: null, near: 0, alternatives: 0, open: new Set(tokens.map((token) => token.node)), measure: () => 20, tagWidth: () => 0, gap: 20 };
      const chips = layoutTree(forest, view).placed.filter((each) => each.item.kind === 'token');
      expect(chips.map((each) => each.item.refused)).toEqual(tokens.map((token) => token.refused));
    }
  });
});
