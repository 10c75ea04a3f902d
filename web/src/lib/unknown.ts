// What another engine did not tell is null in the server's answers, where null has a meaning of its own elsewhere: a
// stage removed the token, or there is no limit. Such numbers become NaN here, which is shown as unknown.

const MARK = /"(?:rank|count)": ?null/; // a cheap check: only runs of another engine have it
const NUMBERS = ['rank', 'rank_after', 'logprob', 'raw_logprob', 'entropy', 'log_sum_exp', 'luck', 'margin'];

/** Returns whether the text of an answer has numbers that are not known. */
export const hasUnknown = (text: string): boolean => MARK.test(text);

/** Puts NaN in the place of each number that is not known, in all objects of an answer. */
export function markUnknown(value: unknown): void {
  if (Array.isArray(value)) return value.forEach(markUnknown);
  if (typeof value !== 'object' || value === null) return;
  const fields = value as Record<string, unknown>;
  if (fields['rank'] === null) {
    for (const name of NUMBERS) if (fields[name] === null) fields[name] = NaN;
    for (const each of (fields['alternatives'] ?? []) as Record<string, unknown>[]) if (each['logprob'] === null) each['logprob'] = NaN;
  }
  if (fields['count'] === null) for (const name of ['count', 'raw', 'after']) fields[name] ??= NaN;
  if (typeof fields['upstream'] === 'string' && fields['margin'] === null) fields['margin'] = NaN;
  Object.values(fields).forEach(markUnknown);
}
