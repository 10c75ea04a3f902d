// The guided tour: from a text to the next token, step by step. Each step uses the live model, gives the user a
// task, and detects when it is done.

import { LIMITS } from './chat';
import type { LensName } from './lenses';
import type { StartBody } from './types';

export interface Step {
  title: string;
  text: string;
  start: StartBody | null; // what runs when the step is opened
  look?: { lens?: LensName; pin?: number };
  todo: string;
  done: 'asked' | 'pinned' | 'forked' | 'stepped' | 'looked' | 'explained';
  needs?: LensName; // the step is left out where the server does not offer this lens
}

const short = { temperature: 0, max_tokens: 12, logprobs: 20 };

export const TOUR: readonly Step[] = [
  {
    title: 'Tokens',
    text: 'A model reads and writes tokens: pieces of text from a fixed vocabulary. Common words are one token, rare ones several; the space before a word belongs to it. The lens Tokens shows the tokens of the prompt, with the id that the model sees for each.',
    start: { prompt: 'Transformers hyperventilate on Wednesdays because', sampling: short },
    look: { lens: 'Tokens' },
    todo: 'Write a rare word or a name into the prompt and press Run: how many tokens is it?',
    done: 'asked',
  },
  {
    title: 'Embeddings',
    text: 'Each id becomes a long list of numbers: a point in a space in which words with similar meanings are close together. The model never sees letters. So replacing a word by a similar one changes little in what follows.',
    start: { prompt: 'The king lived in a large', sampling: short },
    look: { pin: 0, lens: 'Inside' },
    todo: 'Replace “king” by “emperor”, then by “banana”, and press Run each time. Look at the candidates: which word changed them more?',
    done: 'asked',
  },
  {
    title: 'Attention',
    text: 'In every layer each token attends to the tokens before it and combines information from them. It cannot attend to later ones. So one early word can decide what comes much later.',
    start: { prompt: 'Anna is a doctor in Rome. Ben is a sailor. Every morning Anna goes to the', sampling: short },
    look: { pin: 0, lens: 'Inside' },
    todo: 'Change only “doctor” to “baker” and press Run: the probabilities of the next token, many words later, change.',
    done: 'asked',
  },
  {
    title: 'A distribution',
    text: 'The output of the model is not a word but a probability for every token of the vocabulary. The table on the right shows the most likely ones; a last row has the sum of all others. A tint in the text marks tokens that surprised the model.',
    start: { prompt: 'My favourite animal is the', sampling: { temperature: 1, seed: 11, max_tokens: 24, logprobs: 20 } },
    look: { lens: 'Tokens' },
    todo: 'Press N to go to a token where the model was unsure, and compare its candidates with those of a token without a tint.',
    done: 'pinned',
  },
  {
    title: 'Sampling',
    text: 'Stages reshape the distribution: temperature flattens or sharpens it, top-k and top-p cut its tail. Then each candidate gets a random number, its luck, and the highest sum wins. With other settings the same luck can give another winner; the panel shows it before anything runs.',
    start: { prompt: 'Once upon a time there was a', sampling: { temperature: 1.2, seed: 3, max_tokens: 24, logprobs: 20 } },
    look: { pin: 0, lens: 'Tokens' },
    todo: 'Under “What if”, lower the temperature until another token would win, and press “grow it”.',
    done: 'forked',
  },
  {
    title: 'The loop and its cache',
    text: 'The chosen token is appended, and the model runs again: one pass for each token. The results for earlier tokens are cached, so a pass computes only one new token, and a fork shares the common part with the other branch.',
    start: { prompt: 'The recipe for a good day is', sampling: { temperature: 0.8, seed: 5, max_tokens: 20, logprobs: 20 }, pause_after: 1 },
    look: { lens: 'Cache & time' },
    todo: 'Press “step” (or the full stop) a few times: each is one pass. Then look in “Cache & time” how long each took.',
    done: 'stepped',
  },
  {
    title: 'When it stops',
    text: 'A model does not decide to stop; it gives a probability to a token that means “end”, as to any other. A run also ends at a token limit, at a stop text, or when you stop it. A wrong token is never corrected, and later tokens build on it.',
    start: { messages: [{ role: 'user', content: 'Name one colour.' }], sampling: { temperature: 0.7, seed: 1, max_tokens: LIMITS.chat, logprobs: 20 } },
    look: { lens: 'Tokens' },
    todo: 'Press End to go to the token that ended the run, choose an alternative there (↓, then Enter), and see where the new run ends.',
    done: 'forked',
  },
  {
    title: 'Why the same prompt differs',
    text: 'The probabilities are the same each time; the luck is not. A seed fixes the luck, and then every run is the same, to the last bit. Without a seed, each run gets a random one.',
    start: { prompt: 'The best thing about the sea is', sampling: { temperature: 1, seed: 1, max_tokens: 20, logprobs: 20 } },
    look: { lens: 'Compare' },
    todo: 'Run seeds 1 to 5: five branches of one tree, each with its own luck. Then enter seed 1 and press Run: the same text comes back.',
    done: 'asked',
  },
  {
    title: 'Searching for a likely text',
    text: 'Always taking the likeliest token does not give the likeliest text: a less likely beginning may have a better continuation. A beam search keeps the best few texts at once, extends each of them, and prunes the rest. There is no luck in it.',
    start: { prompt: 'The first thing I saw was', sampling: { beam_width: 4, max_tokens: 12, logprobs: 20 } },
    look: { lens: 'Beam' },
    todo: 'At token 0 the chosen text (framed) is behind: when does it take the lead? Choose the strategy “greedy” at the top, press Run, and look in “Compare” which text is likelier as a whole.',
    done: 'asked',
  },
  {
    title: 'Guessing ahead',
    text: 'Checking many tokens at once costs the model little more than one. So a drafter, which looks for repetitions or is a small model of its own, proposes the next tokens, and the model accepts them as long as it would have chosen the same. The text never changes; only the time does.',
    start: { prompt: 'Count again and again: one two three four five. one two three four five. one two three four five.', sampling: { temperature: 0, max_tokens: 30, logprobs: 20 } },
    look: { lens: 'Drafts' },
    todo: 'Look for a token that was rejected or sampled, and click it: what had been proposed in its place?',
    done: 'pinned',
  },
  {
    title: 'Thinking longer',
    text: 'A model can spend more on a question than one answer takes: several paths are written at once, and a method decides. Along each path you see how sure the model was; paths that fall below the threshold are stopped, and the others vote.',
    start: { messages: [{ role: 'user', content: 'A book costs 12 dollars and a pen costs 3 dollars. How much do both cost?' }], sampling: { temperature: 0.7, seed: 1, max_tokens: LIMITS.chat, logprobs: 20 } },
    look: { lens: 'Thinking' },
    todo: 'Press “Think about it”. Which paths were stopped, and would they have voted for the same answer?',
    done: 'asked',
  },
  {
    title: 'Changing its mind',
    text: 'A wrong token is never taken back while a model writes, but it can be replaced afterwards. Replacements are drawn and scored together with the words that follow them: an unexpected word that is right makes what follows likely, and a wrong one does not.',
    start: { prompt: 'The capital of France is the city of London, which lies on the river Seine', sampling: short },
    look: { lens: 'Editing' },
    todo: 'Press “Repair”, then move the slider back and forth. How many bits did the better word save, on itself and on what follows?',
    done: 'asked',
  },
  {
    title: 'Filling in',
    text: 'A text need not be written from left to right. With masks the model sees a whole block of empty places at once; each pass fills those that it is sure of, and the next pass sees what has been filled. A token that turns out to be doubtful can be taken back.',
    start: { prompt: 'The old man sat down and', sampling: { temperature: 0.7, seed: 7, max_tokens: 32, logprobs: 20 }, diffusion: { block: 16, passes: 8, revise: 1 } },
    look: { lens: 'Filling' },
    todo: 'Move the slider from the first pass to the last, and click a place that was filled early and one that was filled late. What did the model know of the others?',
    done: 'explained',
    needs: 'Filling',
  },
  {
    title: 'Where the numbers come from',
    text: 'A model is trained by guessing the next token of texts, over and over; the loss is its mean surprise. At first the samples are noise, then letters, words and sentences appear. The lens Training shows the runs of this server’s folder, also while they go on.',
    start: null,
    look: { lens: 'Training' },
    todo: 'Move the slider below “Samples” from the first step to the last, and compare it with the loss.',
    done: 'looked',
    needs: 'Training',
  },
  {
    title: 'Many engines, one answer',
    text: 'Behind the page there can be one engine or many, on processors or GPUs. A request goes to the replica that has most of its prompt in the cache; if a replica dies, its streams go on in another one with the same tokens.',
    start: null,
    look: { lens: 'Engines' },
    todo: 'Look at the replicas: how many tokens are in the cache of each?',
    done: 'looked',
  },
];
