// The panel's setting of notifications: whether, after how long, and the browser's permission, which is asked for by a click alone.
import { PageConfig } from '@jupyterlab/coreutils';
import React from 'react';

import { NotifySetting } from '../protocol/messages';
import { Texts } from '../text/texts';

/** Choices, in seconds; what `%notify after` set stands among them. */
const CHOICES = [10, 60, 300, 1800, 3600];

/** Where people say how they are told, beside the hub. */
const CHANNELS = `${(PageConfig.getOption('hubPrefix') || '/hub/').replace(/hub\/?$/, '')}services/dashboards/usage/notices`;

interface Props {
  setting: NotifySetting;
  texts: Texts;
  set(setting: NotifySetting): void;
}

export function Notify({ setting, texts, set }: Props): JSX.Element {
  const [wanted, want] = React.useState<NotifySetting | null>(null);
  React.useEffect(() => want(null), [setting.on, setting.after_seconds, setting.channels]);
  const shown = wanted ?? setting;
  const change = (next: NotifySetting): void => {
    want(next);
    set(next);
  };
  const [permission, permit] = React.useState(typeof Notification === 'undefined' ? 'denied' : Notification.permission);
  const allow = async (): Promise<void> => {
    if (permission === 'default') {
      permit(await Notification.requestPermission());
    }
  };
  const choices = [...new Set([...CHOICES, shown.after_seconds])].sort((one, other) => one - other);
  return (
    <div className="forebay-notify">
      <label>
        <input
          type="checkbox"
          checked={shown.on}
          aria-busy={wanted !== null}
          onChange={event => {
            change({ ...shown, on: event.target.checked });
            void (event.target.checked ? allow() : undefined);
          }}
        />
        {texts.say('notify')}
      </label>
      <label>
        {texts.say('notify_after')}
        <select
          value={shown.after_seconds}
          disabled={!shown.on}
          onChange={event => change({ ...shown, after_seconds: Number(event.target.value) })}
        >
          {choices.map(seconds => (
            <option key={seconds} value={seconds}>{lasting(seconds, texts)}</option>
          ))}
        </select>
      </label>
      {setting.channels !== undefined && (
        <span>
          <label>
            <input
              type="checkbox"
              checked={shown.on && shown.channels === true}
              disabled={!shown.on}
              onChange={event => change({ ...shown, channels: event.target.checked })}
            />
            {texts.say('notify_channels')}
          </label>{' '}
          <a href={CHANNELS} target="_blank" rel="noopener">{texts.say('notify_where')}</a>
        </span>
      )}
      {shown.on && permission === 'default' && (
        <button className="forebay-button" onClick={() => void allow()}>{texts.say('notify_allow')}</button>
      )}
      {shown.on && permission === 'denied' && <p className="forebay-hint">{texts.say('notify_denied')}</p>}
    </div>
  );
}

function lasting(seconds: number, texts: Texts): string {
  if (seconds % 3600 === 0 && seconds > 0) {
    return texts.say('notify_hours', { count: seconds / 3600 });
  }
  return seconds % 60 === 0 && seconds > 0
    ? texts.say('notify_minutes', { count: seconds / 60 })
    : texts.say('notify_seconds', { count: seconds });
}
