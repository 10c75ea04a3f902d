import { mount } from 'svelte';
import App from './App.svelte';
import './style.css';

const FONTS = ['16px "JetBrains Mono"', '13px "Inter"'];
const LONGEST = 500; // milliseconds: a page with other fonts is better than none

// Texts are measured before they are drawn, so the fonts are there first.
const target = document.getElementById('studio');
const loaded = Promise.all(FONTS.map((font) => document.fonts.load(font)));
const late = new Promise((resolve) => setTimeout(resolve, LONGEST));
void Promise.race([loaded, late]).catch(() => null).then(() => target && mount(App, { target }));
