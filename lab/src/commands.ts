// The plugin's commands on the notebook in front: run it as a job, share it, and record what its environment has.
import { JupyterFrontEnd } from '@jupyterlab/application';
import { ICommandPalette, Notification } from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';

import { OpenLinks } from './link/openlinks';
import { share } from './panel/share';
import { Recorded } from './protocol/messages';
import { Texts } from './text/texts';

const CATEGORY = 'Forebay';
const RUN_AS_JOB = 'forebay:run-as-job';
const SHARE = 'forebay:share';
const RECORD = 'forebay:record-environment';
/** What kernels of named environments are called, before the name. */
const KERNEL_PREFIX = 'forebay-';
/** Where a notebook's metadata has it. */
const RECORDED_IN = 'forebay';
/** A notification without a time is not shown, but for its number. */
const SHOWN_MS = 8000;

/** What the commands work on; `dashboards` is the address of the dashboards' pages, null where this server belongs to no hub. */
export interface Context {
  app: JupyterFrontEnd;
  notebooks: INotebookTracker | null;
  links: OpenLinks;
  texts: Texts;
  dashboards: string | null;
}

type Command = Parameters<JupyterFrontEnd['commands']['addCommand']>[1];

/** Adds a command to the application, and to the palette where there is one. */
export function addCommand(app: JupyterFrontEnd, palette: ICommandPalette | null, command: string, options: Command): void {
  app.commands.addCommand(command, options);
  palette?.addItem({ command, category: CATEGORY });
}

export function addNotebookCommands(context: Context, palette: ICommandPalette | null): void {
  addCommand(context.app, palette, RUN_AS_JOB, runAsJob(context));
  addCommand(context.app, palette, SHARE, shareNotebook(context));
  addCommand(context.app, palette, RECORD, recordEnvironment(context));
}

function runAsJob({ notebooks, texts, dashboards }: Context): Command {
  return {
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
  };
}

function shareNotebook({ notebooks, links, texts, dashboards }: Context): Command {
  return {
    label: texts.say('share_open'),
    isVisible: () => dashboards !== null,
    isEnabled: () => Boolean(notebooks?.currentWidget && links.current?.state),
    execute: async () => {
      const notebook = notebooks?.currentWidget;
      if (dashboards !== null && notebook && links.current !== null) {
        await share(notebook, links.current, dashboards, texts);
      }
    }
  };
}

function recordEnvironment({ notebooks, links, texts }: Context): Command {
  return {
    label: texts.say('record_environment'),
    isEnabled: () => Boolean(notebooks?.currentWidget) && links.current !== null,
    execute: async () => {
      const model = notebooks?.currentWidget?.context.model;
      const link = links.current;
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
  };
}
