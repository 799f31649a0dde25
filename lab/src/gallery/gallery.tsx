// The gallery: a card in the launcher and an entry in the help menu open it, and each of its notebooks opens as a copy of one's own.
import { ILabShell, JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette, MainAreaWidget } from '@jupyterlab/apputils';
import { ILauncher } from '@jupyterlab/launcher';
import { Contents } from '@jupyterlab/services';
import { ITranslator } from '@jupyterlab/translation';
import { LabIcon, ReactWidget } from '@jupyterlab/ui-components';
import React from 'react';

import iconText from '../../style/device.svg';
import { Example, examples, notebookOf } from './notebooks';
import { Texts } from '../text/texts';

const OPEN_GALLERY = 'forebay:open-gallery';
const FOLDER = 'examples';
const NOT_FOUND = 404;

export const gallery: JupyterFrontEndPlugin<void> = {
  id: 'forebay-lab:gallery',
  description: 'Notebooks to begin from.',
  autoStart: true,
  requires: [ILabShell],
  optional: [ILauncher, ITranslator, ICommandPalette],
  activate
};

function activate(
  app: JupyterFrontEnd,
  shell: ILabShell,
  launcher: ILauncher | null,
  translator: ITranslator | null,
  palette: ICommandPalette | null
): void {
  const texts = new Texts(translator?.languageCode ?? 'en');
  const icon = new LabIcon({ name: 'forebay-lab:gallery', svgstr: iconText });
  let opened: MainAreaWidget | null = null;
  const open = async (example: Example): Promise<void> => {
    const path = await copy(app.serviceManager.contents, example);
    await app.commands.execute('docmanager:open', { path });
  };
  app.commands.addCommand(OPEN_GALLERY, {
    label: texts.say('gallery'),
    caption: texts.say('gallery_hint'),
    icon,
    execute: () => {
      if (opened === null || opened.isDisposed) {
        opened = new MainAreaWidget({ content: ReactWidget.create(<Gallery texts={texts} open={open} />) });
        opened.id = 'forebay-gallery';
        opened.title.label = texts.say('gallery');
        opened.title.icon = icon;
        opened.title.closable = true;
        shell.add(opened, 'main');
      }
      shell.activateById(opened.id);
    }
  });
  launcher?.add({ command: OPEN_GALLERY, category: 'Forebay' });
  palette?.addItem({ command: OPEN_GALLERY, category: 'Forebay' });
}

/** Where the user's copy is: one that is there already is left as it is. */
async function copy(contents: Contents.IManager, example: Example): Promise<string> {
  const path = `${FOLDER}/${example.name}.ipynb`;
  if (!(await exists(contents, path))) {
    if (!(await exists(contents, FOLDER))) {
      await contents.save(FOLDER, { type: 'directory' });
    }
    await contents.save(path, { type: 'notebook', format: 'json', content: notebookOf(example.text) });
  }
  return path;
}

async function exists(contents: Contents.IManager, path: string): Promise<boolean> {
  try {
    await contents.get(path, { content: false });
    return true;
  } catch (error) {
    if ((error as { response?: Response }).response?.status === NOT_FOUND) {
      return false;
    }
    throw error;
  }
}

interface Props {
  texts: Texts;
  open(example: Example): Promise<void>;
}

function Gallery({ texts, open }: Props): JSX.Element {
  const [problem, tell] = React.useState('');
  const [busy, wait] = React.useState(false);
  const press = (example: Example) => (): void => {
    wait(true);
    tell('');
    open(example).catch((error: Error) => tell(error.message)).finally(() => wait(false));
  };
  return (
    <div className="forebay-gallery" role="region" aria-label={texts.say('gallery')}>
      <h2>{texts.say('gallery')}</h2>
      <p className="forebay-hint">{texts.say('gallery_hint')}</p>
      {problem !== '' && <p className="forebay-problem" role="alert">{problem}</p>}
      <ul>
        {examples(texts.language).map(example => (
          <li key={example.name}>
            <h3>{example.title}</h3>
            <p>{example.about}</p>
            <button disabled={busy} onClick={press(example)} aria-label={texts.say('gallery_open_label', { title: example.title })}>
              {texts.say('gallery_open')}
            </button>
          </li>
        ))}
      </ul>
    </div>
  );
}
