// Shares a notebook to be read by a link: asks for how long, has the kernel make the page, and shows the link.
import { Clipboard, Dialog, InputDialog, showDialog, showErrorMessage } from '@jupyterlab/apputils';
import { PathExt } from '@jupyterlab/coreutils';
import { NotebookPanel } from '@jupyterlab/notebook';
import React from 'react';

import { Link } from '../link/link';
import { Shared } from '../protocol/rows';
import { Texts } from '../text/texts';

const DAYS = [1, 7, 30, 90];
const CHOSEN = 2;

/** `dashboards` is the address of the pages of the installation. */
export async function share(panel: NotebookPanel, link: Link, dashboards: string, texts: Texts): Promise<void> {
  const name = PathExt.basename(panel.context.path);
  const items = DAYS.map(count => texts.say('share_days', { count }));
  const { value } = await InputDialog.getItem({
    title: texts.say('share'),
    label: texts.say('share_what', { name }),
    items,
    current: CHOSEN,
    okLabel: texts.say('share_do'),
    cancelLabel: texts.say('share_cancel')
  });
  if (value === null) {
    return;
  }
  try {
    await panel.context.save();
    const shared = (await link.ask('share', { notebook: name, days: DAYS[items.indexOf(value)] })) as Shared;
    await show(shared, `${dashboards}shared/${shared.id}?key=${shared.key}`, texts);
  } catch (error) {
    await showErrorMessage(texts.say('share_failed'), (error as Error).message);
  }
}

async function show(shared: Shared, address: string, texts: Texts): Promise<void> {
  const until = new Date(shared.expires_at_ns / 1e6).toLocaleString(texts.language, { dateStyle: 'long', timeStyle: 'short' });
  const { button } = await showDialog({
    title: texts.say('share_link'),
    body: (
      <div className="forebay-share">
        <p>{texts.say('share_told', { name: shared.name, tenant: shared.tenant, until })}</p>
        <input className="jp-mod-styled" readOnly value={address} aria-label={texts.say('share_link')} onFocus={event => event.target.select()} />
      </div>
    ),
    buttons: [Dialog.cancelButton({ label: texts.say('share_close') }), Dialog.okButton({ label: texts.say('share_copy') })]
  });
  if (button.accept) {
    Clipboard.copyToSystem(address);
  }
}
