// The keys, as data: the page listens to this list and the help dialog is made from it.

export type Action =
  | 'play' | 'step' | 'back' | 'forth' | 'up' | 'down' | 'first' | 'last' | 'fork' | 'rewind' | 'edit'
  | 'next' | 'previous' | 'compare' | 'unpin' | 'help' | 'tour' | 'runs' | 'prompt' | 'theme'
  | 'full' | 'larger' | 'smaller' | 'fit'
  | 'lens1' | 'lens2' | 'lens3' | 'lens4' | 'lens5' | 'lens6' | 'lens7' | 'lens8' | 'lens9' | 'filling' | 'training' | 'engines';

export interface Key {
  keys: string[]; // as KeyboardEvent.key has them
  shown: string;
  action: Action;
  group: Group;
  does: string;
}

export const GROUPS = ['Playing', 'Tokens', 'Tree and panels', 'Page', 'Lenses'] as const;
export type Group = (typeof GROUPS)[number];

export const KEYMAP: readonly Key[] = [
  { keys: [' '], shown: 'Space', action: 'play', group: 'Playing', does: 'Play or pause' },
  { keys: ['.'], shown: '.', action: 'step', group: 'Playing', does: 'One token forward' },
  { keys: ['Backspace'], shown: 'Backspace', action: 'rewind', group: 'Playing', does: 'One token back; the tokens after it stay, faded' },
  { keys: ['ArrowLeft'], shown: '←', action: 'back', group: 'Tokens', does: 'The previous token' },
  { keys: ['ArrowRight'], shown: '→', action: 'forth', group: 'Tokens', does: 'The next token' },
  { keys: ['ArrowUp'], shown: '↑', action: 'up', group: 'Tokens', does: 'The alternative above' },
  { keys: ['ArrowDown'], shown: '↓', action: 'down', group: 'Tokens', does: 'The alternative below' },
  { keys: ['Home'], shown: 'Home', action: 'first', group: 'Tokens', does: 'The first token' },
  { keys: ['End'], shown: 'End', action: 'last', group: 'Tokens', does: 'The last token' },
  { keys: ['Enter'], shown: 'Enter', action: 'fork', group: 'Tokens', does: 'Fork: continue with this alternative, or with new luck' },
  { keys: ['e', 'E'], shown: 'E', action: 'edit', group: 'Tokens', does: 'Edit this token' },
  { keys: ['n', 'N'], shown: 'N', action: 'next', group: 'Tokens', does: 'The next token where the model was uncertain' },
  { keys: ['p', 'P'], shown: 'P', action: 'previous', group: 'Tokens', does: 'The previous such token' },
  { keys: ['c', 'C'], shown: 'C', action: 'compare', group: 'Page', does: 'Compare strategies on this prompt' },
  { keys: ['1'], shown: '1', action: 'lens1', group: 'Lenses', does: 'Compare' },
  { keys: ['2'], shown: '2', action: 'lens2', group: 'Lenses', does: 'Beam' },
  { keys: ['3'], shown: '3', action: 'lens3', group: 'Lenses', does: 'Drafts' },
  { keys: ['4'], shown: '4', action: 'lens4', group: 'Lenses', does: 'Tokens' },
  { keys: ['5'], shown: '5', action: 'lens5', group: 'Lenses', does: 'Cache & time' },
  { keys: ['6'], shown: '6', action: 'lens6', group: 'Lenses', does: 'Inside, if the server offers it' },
  { keys: ['7', 'w', 'W'], shown: '7', action: 'lens7', group: 'Lenses', does: 'Worst tokens (or W): where did it go wrong?' },
  { keys: ['8'], shown: '8', action: 'lens8', group: 'Lenses', does: 'Thinking: several paths and their votes' },
  { keys: ['9'], shown: '9', action: 'lens9', group: 'Lenses', does: 'Editing: a text that changes its mind' },
  { keys: ['d', 'D'], shown: 'D', action: 'filling', group: 'Lenses', does: 'Filling: a text written by diffusion, if the model can' },
  { keys: ['l', 'L'], shown: 'L', action: 'training', group: 'Lenses', does: 'Training, if the server shows training runs' },
  { keys: ['x', 'X'], shown: 'X', action: 'engines', group: 'Lenses', does: 'Engines: the replicas behind the server' },
  { keys: ['f', 'F'], shown: 'F', action: 'full', group: 'Tree and panels', does: 'The lens fills the page, or goes back to its place' },
  { keys: ['+', '='], shown: '+', action: 'larger', group: 'Tree and panels', does: 'The tree larger' },
  { keys: ['-'], shown: '−', action: 'smaller', group: 'Tree and panels', does: 'The tree smaller: more of it in sight' },
  { keys: ['0'], shown: '0', action: 'fit', group: 'Tree and panels', does: 'All of the tree in sight, or its own size' },
  { keys: ['/'], shown: '/', action: 'prompt', group: 'Page', does: 'Write a prompt' },
  { keys: ['r', 'R'], shown: 'R', action: 'runs', group: 'Page', does: 'The list of runs' },
  { keys: ['g', 'G'], shown: 'G', action: 'tour', group: 'Page', does: 'The guided tour' },
  { keys: ['t', 'T'], shown: 'T', action: 'theme', group: 'Page', does: 'Dark or light' },
  { keys: ['Escape'], shown: 'Esc', action: 'unpin', group: 'Tokens', does: 'Unpin; a panel that fills the page goes back' },
  { keys: ['?'], shown: '?', action: 'help', group: 'Page', does: 'These keys' },
];

export interface Pressed {
  key: string;
  ctrlKey: boolean;
  metaKey: boolean;
  altKey: boolean;
}

/** Returns the action of a key, or null while the user types or if the focused element uses the key itself. */
export function actionOf(pressed: Pressed, focus: { tag: string; role: string | null; type: string | null; editable: boolean }): Action | null {
  if (pressed.ctrlKey || pressed.metaKey || pressed.altKey) return null;
  const found = KEYMAP.find((each) => each.keys.includes(pressed.key))?.action ?? null;
  const tag = focus.tag.toLowerCase();
  const range = tag === 'input' && (focus.type === 'range' || focus.type === 'checkbox' || focus.type === 'radio');
  const writes = focus.editable || tag === 'textarea' || tag === 'select' || (tag === 'input' && !range);
  if (writes) return found === 'unpin' ? found : null;
  if (range && /^(Arrow|Home|End| )/.test(pressed.key)) return null;
  const presses = pressed.key === 'Enter' || pressed.key === ' ';
  if (presses && (tag === 'button' || tag === 'a' || tag === 'summary' || focus.role === 'tab') && focus.role !== 'treeitem') return null;
  if (focus.role === 'tab' && /^(Arrow|Home|End)/.test(pressed.key)) return null;
  return found;
}
