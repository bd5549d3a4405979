// The site that `make docs` builds of the manual. The pages are plain Markdown: their order comes from the lists of
// index.md and adr/README.md, and all that only the site needs is here and in the theme.
import { existsSync, readFileSync, readdirSync } from 'node:fs';
import { posix } from 'node:path';
import { fileURLToPath } from 'node:url';

const docs = fileURLToPath(new URL('..', import.meta.url));
const repository = 'https://github.com/seed46cd37a8/atoll';
const readPage = page => readFileSync(docs + page, 'utf8');
const titleOf = page => readPage(page).match(/^# (.+)$/m)[1].replaceAll('`', '');
const pathOf = page => '/' + page.replace(/README\.md$/, 'index.md').replace(/\.md$/, '.html').replace(/(^|\/)index\.html$/, '$1');
const itemOf = page => ({ text: titleOf(page), link: pathOf(page) });

// listGroups returns the groups of a sidebar: the sections of a page, with the pages that each one links to.
function listGroups(page) {
  return readPage(page).split(/^## /m).slice(1).map(section => {
    const links = [...section.matchAll(/\]\(([^)#:]+\.md)\)/g)].map(m => posix.join(posix.dirname(page), m[1]));
    return { text: section.split('\n', 1)[0], pages: [...new Set(links)].filter(link => existsSync(docs + link)) };
  });
}

// listManual returns the groups of the manual's sidebar.
function listManual() {
  const groups = listGroups('index.md');
  const listed = new Set(groups.flatMap(group => group.pages));
  const reference = existsSync(docs + 'reference') ? readdirSync(docs + 'reference').sort().map(name => 'reference/' + name) : [];
  const rest = reference.filter(page => page.endsWith('.md') && !listed.has(page));
  const group = groups.find(group => group.text === 'Reference');
  if (group) group.pages.push(...rest);
  else if (rest.length) groups.push({ text: 'Reference', pages: rest });
  return groups.map(({ text, pages }) => ({ text, collapsed: text === 'Providers', items: pages.map(itemOf) }));
}

// listDecisions returns the groups of the decisions' sidebar, of which the reader opens one.
function listDecisions() {
  const groups = listGroups('adr/README.md').map(({ text, pages }) => ({ text, collapsed: true, items: pages.map(itemOf) }));
  return [{ text: 'Manual', link: '/' }, { text: 'Decisions', link: '/adr/' }, ...groups];
}

// makeAnchor returns the anchor that a code forge gives to a heading, so that a link works in both places.
const makeAnchor = heading => heading.toLowerCase().replace(/[^\p{L}\p{N} _-]/gu, '').replaceAll(' ', '-');

// resolveTarget returns the target of a link or a picture of a page in the site. Files outside of docs are in the repository.
function resolveTarget(page, target) {
  if (/^([a-z]+:|#|\/)/.test(target)) return target;
  const path = posix.join(posix.dirname(page), target);
  if (path.startsWith('../')) return repository + '/blob/main/' + path.slice(3);
  if (path.startsWith('public/')) return path.slice('public'.length);
  return target.replace(/(^|\/)README\.md/, '$1index.md');
}

// adaptPage changes the tokens of a page: targets, short pieces of code, and the options behind the language of a block.
function adaptPage({ tokens, env }) {
  for (const token of tokens) {
    if (token.type === 'fence') token.info = token.info.split(' ')[0];
    for (const child of token.children ?? []) {
      const name = { link_open: 'href', image: 'src' }[child.type];
      if (child.type === 'code_inline' && child.content.length <= 24) child.attrJoin('class', 'short');
      if (name) child.attrSet(name, resolveTarget(env.relativePath, child.attrGet(name)));
    }
  }
}

// arrangeHome makes a card of each section of index.md, and leaves to the hero what is above its picture.
function arrangeHome(state) {
  if (state.env.relativePath !== 'index.md') return;
  const html = content => Object.assign(new state.Token('html_block', '', 0), { content });
  const cards = [];
  for (const token of state.tokens) {
    if (token.type === 'heading_open' && token.tag === 'h2') cards.push(html(cards.some(t => t.tag === 'h2') ? '</section><section>' : '<div class="cards"><section>'));
    cards.push(token);
  }
  cards.push(html('</section></div>'));
  state.tokens = cards.slice(cards.findIndex(token => token.children?.some(child => child.type === 'image')) - 1);
}

const manual = listManual();
const reference = manual.find(group => group.text === 'Reference')?.items ?? [];

const description =
  'Isolated sandboxes in which agents run commands, write files and keep their work: a command line, an HTTP server and a Go library over one small interface.';

export default {
  lang: 'en',
  title: 'Atoll',
  titleTemplate: ':title | Atoll',
  description,
  head: [['link', { rel: 'icon', type: 'image/svg+xml', href: 'data:image/svg+xml;base64,' + btoa(readPage('public/logo.svg')) }]],
  cleanUrls: false,
  lastUpdated: false,
  buildConcurrency: 1, // or else the index of the search is another one each time
  vite: { build: { chunkSizeWarningLimit: 4000 } }, // kB: the index of the search is one file, which a browser loads for a search only
  rewrites: { 'adr/README.md': 'adr/index.md' },
  markdown: {
    linkify: false, // http://host:port is no link
    anchor: { slugify: makeAnchor },
    // By default the colours of a line depend on how fast the machine is.
    codeTransformers: [{ preprocess(_, options) { options.tokenizeTimeLimit = 0; } }],
    config(md) {
      md.core.ruler.push('adapt_page', adaptPage);
      md.renderer.rules.text = (tokens, i) => md.utils.escapeHtml(tokens[i].content).replaceAll('{{', '&#123;&#123;'); // no expression
      md.core.ruler.push('arrange_home', arrangeHome);
    },
  },
  transformPageData(page) {
    if (page.relativePath !== 'index.md') return;
    const hero = {
      name: 'Atoll',
      text: 'A computer for every AI agent',
      tagline: description,
      actions: [
        { theme: 'brand', text: 'Get started', link: '/get-started' },
        { theme: 'alt', text: 'Concepts', link: '/concepts' },
        { theme: 'alt', text: 'Security', link: '/security' },
      ],
    };
    return { titleTemplate: hero.text, frontmatter: { layout: 'home', hero } };
  },
  themeConfig: {
    logo: { src: '/logo.svg', alt: '' },
    nav: [
      { text: 'Manual', link: '/get-started', activeMatch: '^/(?!(adr|providers|reference)/|(index.html)?$)' },
      { text: 'Providers', link: '/providers/', activeMatch: '^/providers/' },
      ...(reference.length ? [{ text: 'Reference', link: reference[0].link, activeMatch: '^/reference/' }] : []),
      { text: 'Decisions', link: '/adr/', activeMatch: '^/adr/' },
      { text: 'Source', link: repository },
    ],
    sidebar: { '/': manual, '/adr/': listDecisions() },
    outline: [2, 3],
    search: {
      provider: 'local',
      options: {
        _render: (text, env, md) => (env.relativePath === 'index.md' ? '' : md.render(text, env)), // that page is a list of the others
        miniSearch: { searchOptions: { boostDocument: id => (id.includes('/adr/') ? 0.2 : 1) } },
      },
    },
    footer: { message: `Released under the <a href="${repository}/blob/main/LICENSE">Apache License 2.0</a>.` },
  },
};
