// The lenses, in the order of their tabs.

export const LENSES = ['Compare', 'Beam', 'Drafts', 'Tokens', 'Cache & time', 'Inside', 'Worst tokens', 'Thinking'] as const;
export type LensName = (typeof LENSES)[number];
