// The plugin: a status item, a side panel and commands, in JupyterLab and in Notebook. It asks no server but the kernel.
import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette, Notification } from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator } from '@jupyterlab/translation';
import { LabIcon } from '@jupyterlab/ui-components';

import iconText from '../style/device.svg';
import { gallery } from './examples';
import { Panel } from './panel';
import { Recorded } from './protocol';
import { Roster } from './roster';
import { share } from './share';
import { StatusItem } from './statusitem';
import { Texts } from './texts';

const PLUGIN = 'forebay-lab:plugin';
const OPEN = 'forebay:open-panel';
const RUN_AS_JOB = 'forebay:run-as-job';
const SHARE = 'forebay:share';
const RECORD = 'forebay:record-environment';
/** What kernels of named environments are called, before the name. */
const KERNEL_PREFIX = 'forebay-';
/** Where a notebook's metadata has it. */
const RECORDED_IN = 'forebay';
/** A notification without a time is not shown, but for its number. */
const SHOWN_MS = 8000;
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
  let settings: ISettingRegistry.ISettings | null = null;
  const wantsLine = (): boolean => settings?.composite.line !== false;
  const ready = (registry?.load(PLUGIN) ?? Promise.reject(new Error('no settings here'))).then(
    loaded => {
      settings = loaded;
      roster.forEach(link => wantsLine() || link.tell({ quiet: true }));
      loaded.changed.connect(() => roster.forEach(link => link.tell({ quiet: !wantsLine() })));
    },
    () => undefined
  );
  const roster = new Roster(
    notebooks,
    () => ({ locale: texts.language, ...(wantsLine() ? {} : { quiet: true }) }),
    texts,
    panel => app.shell.activateById(panel.id)
  );
  const setLine = (on: boolean): void => {
    void ready.then(async () => {
      await settings?.set('line', on);
      roster.current?.tell({ quiet: !on });
    });
  };
  const panel = new Panel(roster, texts, icon, setLine);
  app.shell.add(panel, 'right', { rank: PANEL_RANK });
  const open = (): void => app.shell.activateById(panel.id);
  const item = new StatusItem(roster, texts, open);
  if (statusBar !== null) {
    statusBar.registerStatusItem(PLUGIN, { item, align: 'left', rank: STATUS_RANK, priority: 1 });
  } else {
    // Notebook has no status bar; its bar of menus has the kernel's state at its end.
    item.id = 'forebay-status';
    app.shell.add(item, 'menu', { rank: STATUS_RANK });
  }
  app.commands.addCommand(OPEN, { label: texts.say('open_panel'), icon, execute: open });
  palette?.addItem({ command: OPEN, category: 'Forebay' });
  const dashboards = dashboardsAt(paths);
  app.commands.addCommand(RUN_AS_JOB, {
    label: texts.say('run_as_job'),
    isVisible: () => dashboards !== null,
    isEnabled: () => Boolean(notebooks?.currentWidget),
    execute: async () => {
      const context = notebooks?.currentWidget?.context;
      if (dashboards !== null && context) {
        const page = window.open('about:blank'); // now, while the click counts: saving takes its time
        await context.save();
        const kernel = context.sessionContext.session?.kernel?.name ?? '';
        const own = kernel.startsWith(KERNEL_PREFIX) ? `&environment=${encodeURIComponent(kernel.slice(KERNEL_PREFIX.length))}` : '';
        page?.location.replace(`${dashboards}jobs?file=${encodeURIComponent(context.path)}${own}`);
      }
    }
  });
  palette?.addItem({ command: RUN_AS_JOB, category: 'Forebay' });
  app.commands.addCommand(SHARE, {
    label: texts.say('share_open'),
    isVisible: () => dashboards !== null,
    isEnabled: () => Boolean(notebooks?.currentWidget && roster.current?.state),
    execute: async () => {
      const notebook = notebooks?.currentWidget;
      if (dashboards !== null && notebook && roster.current !== null) {
        await share(notebook, roster.current, dashboards, texts);
      }
    }
  });
  palette?.addItem({ command: SHARE, category: 'Forebay' });
  app.commands.addCommand(RECORD, {
    label: texts.say('record_environment'),
    isEnabled: () => Boolean(notebooks?.currentWidget) && roster.current !== null,
    execute: async () => {
      const model = notebooks?.currentWidget?.context.model;
      const link = roster.current;
      if (!model || link === null) {
        return;
      }
      try {
        const found = (await link.ask('packages')) as Recorded;
        // Into the page's own notebook, and saved with it: the file may be older than what is typed here.
        model.setMetadata(RECORDED_IN, { ...model.getMetadata(RECORDED_IN), ...found });
        const values = { python: found.python, count: found.requirements.length };
        Notification.success(texts.say('recorded', values), { autoClose: SHOWN_MS });
      } catch (error) {
        Notification.error((error as Error).message, { autoClose: false });
      }
    }
  });
  palette?.addItem({ command: RECORD, category: 'Forebay' });
}

/** The address of the dashboards' pages, where this server is one of a hub's. */
function dashboardsAt(paths: JupyterFrontEnd.IPaths | null): string | null {
  const hub = paths?.urls.hubPrefix;
  return hub ? new URL(`${hub.replace(/hub\/?$/, '')}services/dashboards/`, window.location.origin).href : null;
}

export default [plugin, gallery];
