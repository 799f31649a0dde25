// The panel's list of what else the user has devices for, each to be released after a second press.
import React from 'react';

import * as amounts from '../text/amounts';
import { Session } from '../protocol/messages';
import { Texts } from '../text/texts';

interface Props {
  texts: Texts;
  /** Null while the pool is asked. */
  sessions: Session[] | null;
  release(session: string, what: string): void;
}

export function Sessions({ texts, sessions, release }: Props): JSX.Element | null {
  const [asked, ask] = React.useState<string | null>(null);
  if (sessions === null) {
    return null;
  }
  const others = sessions.filter(session => !session.here);
  const here = sessions.find(session => session.here && session.image);
  return (
    <section>
      {here && <p className="forebay-hint">{texts.say('image_here', { image: amounts.image(here.image, texts) })}</p>}
      <h3 id="forebay-sessions">{texts.say('sessions')}</h3>
      {others.length === 0 && <p className="forebay-hint">{texts.say('sessions_none')}</p>}
      <ul className="forebay-sessions" aria-labelledby="forebay-sessions">
        {others.map(session => {
          const what = session.span?.label || session.process;
          return (
            <li key={session.session}>
              <span className="forebay-session-what" title={session.process}>{what}</span>
              <span className="forebay-session-more">
                {[session.flavor, texts.state(session.state), amounts.memory(session.memory_bytes), amounts.image(session.image, texts)]
                  .filter(part => part !== '')
                  .join(' · ')}
              </span>
              {asked === session.session ? (
                <span className="forebay-ask" role="group" aria-label={texts.say('release_label', { what })}>
                  <span>{texts.say('release_ask')}</span>
                  <button
                    className="forebay-button forebay-danger"
                    autoFocus
                    onClick={() => {
                      ask(null);
                      release(session.session, what);
                    }}
                  >
                    {texts.say('release_yes')}
                  </button>
                  <button className="forebay-button" onClick={() => ask(null)}>
                    {texts.say('release_no')}
                  </button>
                </span>
              ) : (
                <button
                  className="forebay-button"
                  aria-label={texts.say('release_label', { what })}
                  onClick={() => ask(session.session)}
                >
                  {texts.say('release')}
                </button>
              )}
            </li>
          );
        })}
      </ul>
    </section>
  );
}
