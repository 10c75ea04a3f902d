// How the score of a candidate came about, so that it can be checked with a calculator: which columns the table of the
// race has, and the sum as a sentence.

import type { Candidate, Explanation } from './types';

export interface Race {
  racers: Candidate[]; // those that the stages left, the highest score first
  scaled: string | null; // heads the logits after the stages, if these differ from the model's own
  lucky: boolean;
  sum: string;
}

const MOST = 6;

export function raceOf({ candidates, stages, sampling, source }: Explanation): Race {
  const racers = candidates.filter((each) => each.score !== null).slice(0, MOST);
  const lucky = source !== 'beam' && source !== 'prompt' && sampling['temperature'] !== 0;
  const known = racers.every((each) => each.raw_logit != null);
  const same = racers.every((each) => each.raw_logit === each.logit);
  const changing = stages.filter((each) => each.kind !== 'mask' && each.moved_count > 0).map((each) => each.name);
  const divided = changing.length === 1 && changing[0] === 'temperature';
  const scaled = !known || same ? null : divided ? `÷ ${String(sampling['temperature'])}` : 'after stages';
  const start = scaled === null ? 'logit' : divided ? 'logit ÷ temperature' : `logit after ${changing.join(', ') || 'the stages'}`;
  return { racers, scaled, lucky, sum: lucky ? `${start} + luck = score; the highest score wins.` : `No luck here: the highest ${start} is first.` };
}
