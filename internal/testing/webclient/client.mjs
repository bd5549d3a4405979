// Runs one client of a web page, as an order on stdin says, and prints what it gets, one object of
// JSON a line. The argument is the directory of the libraries.
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const load = name => import(pathToFileURL(createRequire(process.argv[2] + '/').resolve(name)));
const print = line => process.stdout.write(JSON.stringify(line) + '\n');
let input = '';
for await (const piece of process.stdin) input += piece;
const order = JSON.parse(input);
const headers = order.token ? { Authorization: 'Bearer ' + order.token } : {};

// readAll prints each state of the message that a stream makes.
async function readAll(ai, stream) {
  const errors = [];
  let message = null;
  for await (message of ai.readUIMessageStream({ stream, onError: e => errors.push(String(e?.message ?? e)) })) print({ message });
  print({ end: true, message, errors });
}

// A State has the state of a chat, as a framework does.
class State {
  status = 'ready';
  error = undefined;
  messages = [];
  pushMessage = m => { this.messages = [...this.messages, m]; print({ message: m }); };
  popMessage = () => { this.messages = this.messages.slice(0, -1); };
  replaceMessage = (i, m) => { this.messages = this.messages.with(i, m); print({ message: m }); };
  snapshot = structuredClone;
}

const clients = {
  // Responses that are there already.
  async read(ai) {
    for (const text of order.streams) {
      try {
        await readAll(ai, new ai.DefaultChatTransport().processResponseStream(new Response(text).body));
      } catch (e) {
        print({ end: true, failed: String(e?.message ?? e) });
      }
    }
  },
  // The transport's two requests.
  async send(ai) {
    const { api, chatId, messages, trigger = 'submit-message', messageId, body } = order;
    await readAll(ai, await new ai.DefaultChatTransport({ api, headers, body }).sendMessages({ chatId, messages, trigger, messageId }));
  },
  async resume(ai) {
    const stream = await new ai.DefaultChatTransport({ api: order.api, headers }).reconnectToStream({ chatId: order.chatId });
    if (stream === null) print({ end: true, nothing: true });
    else await readAll(ai, stream);
  },
  // A whole chat, as useChat has.
  async chat(ai) {
    class Chat extends ai.AbstractChat {}
    const state = new State(), finishes = [];
    const transport = new ai.DefaultChatTransport({ api: order.api, headers, body: order.body });
    const chat = new Chat({ id: order.chatId, state, transport, onFinish: ({ isAbort, isError, isDisconnect }) => finishes.push({ isAbort, isError, isDisconnect }) });
    await chat.resumeStream();
    for (const text of order.texts) await chat.sendMessage({ text });
    if (order.regenerate) await chat.regenerate();
    print({ end: true, messages: chat.messages, status: chat.status, errors: chat.error ? [chat.error.message] : [], finishes });
  },
  // An EventSource, which connects again until the server tells it not to.
  async events() {
    const { EventSource } = await load('eventsource');
    const source = new EventSource(order.api, {
      fetch: async (url, init) => {
        const response = await fetch(url, { ...init, headers: { ...init.headers, ...headers } });
        print({ status: response.status });
        return response;
      },
    });
    source.onmessage = e => print({ event: e.data });
    source.onerror = () => { if (source.readyState === EventSource.CLOSED) print({ end: true }); };
  },
};

try {
  await clients[order.client](order.client === 'events' ? null : await load('ai'));
} catch (e) {
  print({ end: true, failed: String(e?.message ?? e) });
}
