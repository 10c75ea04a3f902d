// The lenses, in the order of their tabs.

export const LENSES = ['Compare', 'Beam', 'Drafts', 'Tokens', 'Cache & time', 'Inside', 'Worst tokens', 'Thinking', 'Editing', 'Filling', 'Training', 'Engines'] as const;
export type LensName = (typeof LENSES)[number];
