// Builds the page into the Python package, from where the server sends it.
import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig } from 'vite';

const server = process.env['GLASSLOOP_SERVER'] ?? 'http://127.0.0.1:8000';

export default defineConfig({
  base: './',
  plugins: [svelte()],
  build: { outDir: '../src/glassloop/server/static', emptyOutDir: true, target: 'es2022', modulePreload: { polyfill: false } },
  server: { proxy: { '/api': server, '/tokenize': server, '/detokenize': server } },
});
