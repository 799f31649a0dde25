// Rows of the pool, as a kernel passes them on. Written by lab/row_types.py from the pool's OpenAPI document.

export interface Cause {
  code: string | null;
  message?: string;
  values: Record<string, string | number>;
  parts: Cause[];
}

export interface Equivalent {
  model: string;
  count: number;
  share_milli: number;
  devices?: number;
  speed?: number | null;
}

export interface FlavorRow {
  name: string;
  memory_bytes: number;
  price_nano_per_hour: number | null;
  currency: string | null;
  equivalents: Equivalent[];
  servable: boolean;
  reason: string | null;
  cause?: Cause | null;
}

export interface Span {
  label: string;
}

export interface Image {
  bytes: number;
  at_ns: number;
}

export interface SessionRow {
  session: string;
  flavor: string;
  state: string;
  process: string;
  span: Span | null;
  memory_bytes: number;
  image?: Image | null;
}

export interface Shared {
  id: number;
  key: string;
  name: string;
  tenant: string;
  expires_at_ns: number;
}
