// The plugin: a status item, a side panel and commands, in JupyterLab and in Notebook. It asks no server but the kernel.
import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator } from '@jupyterlab/translation';
import { LabIcon } from '@jupyterlab/ui-components';

import iconText from '../style/device.svg';
import { addCommand, addNotebookCommands } from './commands';
import { gallery } from './gallery/gallery';
import { LinePreference } from './link/linepreference';
import { OpenLinks } from './link/openlinks';
import { Panel } from './panel/panel';
import { StatusItem } from './panel/statusitem';
import { Texts } from './text/texts';

const PLUGIN = 'forebay-lab:plugin';
const OPEN = 'forebay:open-panel';
const PANEL_RANK = 600;
const STATUS_RANK = 100;

const plugin: JupyterFrontEndPlugin<void> = {
  id: PLUGIN,
  description: 'Shows what the virtual device of a notebook does and what it costs.',
  autoStart: true,
  optional: [INotebookTracker, IStatusBar, ITranslator, ISettingRegistry, ICommandPalette, JupyterFrontEnd.IPaths],
  activate
};

function activate(
  app: JupyterFrontEnd,
  notebooks: INotebookTracker | null,
  statusBar: IStatusBar | null,
  translator: ITranslator | null,
  registry: ISettingRegistry | null,
  palette: ICommandPalette | null,
  paths: JupyterFrontEnd.IPaths | null
): void {
  const texts = new Texts(translator?.languageCode ?? 'en');
  const icon = new LabIcon({ name: 'forebay-lab:device', svgstr: iconText });
  const line = new LinePreference(registry?.load(PLUGIN));
  const greeting = () => ({ locale: texts.language, ...(line.isWanted ? {} : { quiet: true }) });
  const links = new OpenLinks(notebooks, greeting, texts, panel => app.shell.activateById(panel.id));
  void line.tell(links);
  const panel = new Panel(links, texts, icon, on => void line.set(on, links));
  app.shell.add(panel, 'right', { rank: PANEL_RANK });
  const open = (): void => app.shell.activateById(panel.id);
  addStatus(app, statusBar, new StatusItem(links, texts, open));
  addCommand(app, palette, OPEN, { label: texts.say('open_panel'), icon, execute: open });
  addNotebookCommands({ app, notebooks, links, texts, dashboards: dashboardsAt(paths) }, palette);
}

/** Notebook has no status bar; its bar of menus has the kernel's state at its end. */
function addStatus(app: JupyterFrontEnd, statusBar: IStatusBar | null, item: StatusItem): void {
  if (statusBar !== null) {
    statusBar.registerStatusItem(PLUGIN, { item, align: 'left', rank: STATUS_RANK, priority: 1 });
  } else {
    item.id = 'forebay-status';
    app.shell.add(item, 'menu', { rank: STATUS_RANK });
  }
}

/** The address of the dashboards' pages, where this server is one of a hub's. */
function dashboardsAt(paths: JupyterFrontEnd.IPaths | null): string | null {
  const hub = paths?.urls.hubPrefix;
  return hub ? new URL(`${hub.replace(/hub\/?$/, '')}services/dashboards/`, window.location.origin).href : null;
}

export default [plugin, gallery];
