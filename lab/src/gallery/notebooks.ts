// The notebooks of the gallery: Markdown files of which each block of Python is a cell.
import { ICell, INotebookContent } from '@jupyterlab/nbformat';

import diffusion from '../../gallery/diffusion.md';
import gan from '../../gallery/gan.md';
import keras from '../../gallery/keras.md';
import kerasSequences from '../../gallery/keras-sequences.md';
import lora from '../../gallery/lora.md';
import manyDevices from '../../gallery/many-devices.md';
import mixedPrecision from '../../gallery/mixed-precision.md';
import outOfMemory from '../../gallery/out-of-memory.md';
import profiling from '../../gallery/profiling.md';
import reinforcementLearning from '../../gallery/reinforcement-learning.md';
import twoDevices from '../../gallery/two-devices.md';
import visionTransformer from '../../gallery/vision-transformer.md';
import korean from './korean.json';

const FENCE = /^```python\n([^]*?)^```$/m;

export interface Example {
  /** Of its file, without an ending. */
  name: string;
  title: string;
  about: string;
  text: string;
}

const TEXTS: Record<string, string> = {
  lora,
  'vision-transformer': visionTransformer,
  diffusion,
  gan,
  'reinforcement-learning': reinforcementLearning,
  'out-of-memory': outOfMemory,
  profiling,
  'two-devices': twoDevices,
  'mixed-precision': mixedPrecision,
  keras,
  'keras-sequences': kerasSequences,
  'many-devices': manyDevices
};

/** All of them; titles and what they are about in this language. */
export function examples(language: string): Example[] {
  return Object.entries(TEXTS).map(([name, text]) => {
    const [heading, about] = text.split('\n\n', 2);
    const told = language === 'ko' ? (korean as Record<string, string[]>)[name] : undefined;
    return { name, title: told?.[0] ?? heading.replace('# ', ''), about: told?.[1] ?? about, text };
  });
}

/** As a file of Jupyter's. */
export function notebookOf(text: string): INotebookContent {
  const parts = text.split(FENCE).map(part => part.trim());
  const cells = parts.map((source, index): ICell => {
    const id = `cell-${index}`;
    return index % 2 === 0
      ? { id, cell_type: 'markdown', metadata: {}, source }
      : { id, cell_type: 'code', metadata: {}, source, execution_count: null, outputs: [] };
  });
  const kernelspec = { name: 'python3', display_name: 'Python 3', language: 'python' };
  return { nbformat: 4, nbformat_minor: 5, metadata: { kernelspec }, cells: cells.filter(({ source }) => source !== '') };
}
