// The guided tour: the way from a text to the next token, in the order in which articles tell it. Each step is
// on the live model, says what to do, and knows when it is done.

import type { StartBody } from './types';

export interface Step {
  title: string;
  text: string;
  start: StartBody | null; // what runs when the step is opened
  look?: { lens?: number; pin?: number }; // lens 5 only where the server offers it
  todo: string;
  done: 'asked' | 'pinned' | 'forked' | 'stepped';
}

const short = { temperature: 0, max_tokens: 12, logprobs: 20 };

export const TOUR: readonly Step[] = [
  {
    title: 'Tokens',
    text: 'A model reads and writes tokens: pieces of text from a fixed vocabulary. Common words are one token, rare ones several; the space before a word belongs to it. The lens Tokens shows the prompt in pieces, with the id that the model sees for each.',
    start: { prompt: 'Transformers hyperventilate on Wednesdays because', sampling: short },
    look: { lens: 3 },
    todo: 'Write a rare word or a name into the prompt and press Run: into how many pieces does it fall?',
    done: 'asked',
  },
  {
    title: 'Embeddings',
    text: 'Each id becomes a long list of numbers, a place in a space where words of like meaning lie close. The model never sees letters. So a word can be swapped for its neighbour and the rest goes on much the same.',
    start: { prompt: 'The king lived in a large', sampling: short },
    look: { pin: 0, lens: 5 },
    todo: 'Put “emperor”, then “banana”, in the place of “king” and press Run. Look at the candidates: which word changed them more?',
    done: 'asked',
  },
  {
    title: 'Attention',
    text: 'In every layer each token looks back at all before it and takes what it needs. It cannot look ahead. So one early word can decide what comes much later.',
    start: { prompt: 'Anna is a doctor in Rome. Ben is a sailor. Every morning Anna goes to the', sampling: short },
    look: { pin: 0, lens: 5 },
    todo: 'Change only “doctor” to “baker” and press Run: the first token, many words later, is weighed anew.',
    done: 'asked',
  },
  {
    title: 'A distribution',
    text: 'What comes out is not a word but a probability for every token of the vocabulary. The table on the right has the likeliest; the row of all others makes it sum to one. A tint in the text marks tokens that surprised the model.',
    start: { prompt: 'My favourite animal is the', sampling: { temperature: 1, seed: 11, max_tokens: 24, logprobs: 20 } },
    todo: 'Press N to go to a token where the model was unsure, and compare its candidates with those of a token without a tint.',
    done: 'pinned',
  },
  {
    title: 'Sampling',
    text: 'Stages reshape the distribution: temperature flattens or sharpens it, top-k and top-p cut its tail. Then each candidate draws luck, and the highest sum wins. The same luck with other settings can give another winner, and the panel says so before anything runs.',
    start: { prompt: 'Once upon a time there was a', sampling: { temperature: 1.2, seed: 3, max_tokens: 24, logprobs: 20 } },
    look: { pin: 0 },
    todo: 'Under “What if” pull the temperature down until another token would win, and press “grow it”.',
    done: 'forked',
  },
  {
    title: 'The loop and its cache',
    text: 'The chosen token is put at the end and everything begins again: one pass for each token. What was computed for earlier tokens is kept, so a pass has only one new token to do, and a fork shares all it has in common with the other branch.',
    start: { prompt: 'The recipe for a good day is', sampling: { temperature: 0.8, seed: 5, max_tokens: 20, logprobs: 20 }, pause_after: 1 },
    look: { lens: 4 },
    todo: 'Press “step” (or the full stop) a few times: each is one pass. Then see in “Cache & time” how long each took.',
    done: 'stepped',
  },
  {
    title: 'When it stops',
    text: 'A model does not decide to stop; it gives a probability to a token that means “end”, like to any other. Other ends are a limit of tokens, a text that must not come, or you. A wrong token stays in the text, and what follows builds on it.',
    start: { messages: [{ role: 'user', content: 'Name one colour.' }], sampling: { temperature: 0.7, seed: 1, max_tokens: 60, logprobs: 20 } },
    todo: 'Press End to go to the token that ended it, take another alternative there (↓, then Enter), and see where it ends now.',
    done: 'forked',
  },
  {
    title: 'Why the same prompt differs',
    text: 'The probabilities are the same each time; the luck is not. A seed fixes the luck, and then every run is the same, to the last bit. Without one, each run draws its own.',
    start: { prompt: 'The best thing about the sea is', sampling: { temperature: 1, seed: 1, max_tokens: 20, logprobs: 20 } },
    todo: 'Press Enter on a token for new luck, or change the seed and run again. Then put the old seed back: the old text returns.',
    done: 'asked',
  },
];
