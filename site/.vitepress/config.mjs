// The site of ../docs, whose pages stay as GitHub shows them: menus come from the files, and links are rewritten here.
// .ci/site builds it, once for each of versions.json. SITE_VERSION is the version, SITE_ROOT the checkout that has it.
import fs from 'node:fs'
import path from 'node:path'
import { defineConfig } from 'vitepress'

const repository = 'https://github.com/txoutbox/outbox'
const host = 'https://txoutbox.github.io'
const here = path.resolve(import.meta.dirname, '..')
const versions = JSON.parse(fs.readFileSync(path.join(here, 'versions.json'), 'utf8')) // the first is where / leads
const version = process.env.SITE_VERSION || versions[0]
const base = v => `/outbox/${v}/`
const root = path.resolve(process.env.SITE_ROOT || path.join(here, '..'))
const docs = path.join(root, 'docs')
const read = (...name) => fs.readFileSync(path.join(...name), 'utf8')
const icon = 'data:image/svg+xml,' + encodeURIComponent(read(here, '../dashboard/static/icon.svg'))

// Anchors are those of GitHub, which the pages' links use.
const slugify = heading => heading.toLowerCase().replace(/[^\p{L}\p{N}_\- ]/gu, '').replaceAll(' ', '-')

function title(page) {
  return read(docs, page).match(/^# (.*)$/m)[1].replaceAll('`', '')
}

// sidebar has a group for each folder. README.md's links give the order; pages that it does not link come last.
function sidebar() {
  const linked = [...read(docs, 'README.md').matchAll(/\]\(([\w/-]+\.md)/g)].map(m => m[1])
  const files = fs.readdirSync(docs, { recursive: true }).filter(f => f.endsWith('.md') && f !== 'README.md').sort()
  const groups = new Map()
  for (const page of new Set([...linked.filter(f => files.includes(f)), ...files])) {
    const folder = path.dirname(page)
    if (!groups.has(folder)) groups.set(folder, [])
    groups.get(folder).push({ text: title(page), link: '/' + page.replace(/\.md$/, '') })
  }
  return [...groups].map(([folder, items]) => {
    const name = folder === '.' ? 'about outbox' : folder.replaceAll('-', ' ')
    return { text: name[0].toUpperCase() + name.slice(1), items }
  })
}

// outward leads links from the pages to other files of the repository to GitHub. It fails if there is no such file.
function outward(md) {
  md.core.ruler.after('inline', 'outward', ({ env, tokens }) => {
    const page = path.join(docs, env.relativePath === 'index.md' ? 'README.md' : env.relativePath)
    for (const token of tokens.flatMap(t => t.children ?? []).filter(t => t.type === 'link_open')) {
      const [file, anchor] = token.attrGet('href').split('#')
      if (!file || /^[a-z]+:/.test(file)) continue
      const target = path.resolve(path.dirname(page), file)
      const name = path.relative(root, target)
      if (name.startsWith('docs/') && name.endsWith('.md')) {
        if (name === 'docs/README.md') token.attrSet('href', token.attrGet('href').replace('README.md', 'index.md'))
        continue // VitePress looks for it
      }
      if (!fs.existsSync(target)) throw new Error(`${page}: the link ${file} leads nowhere`)
      const kind = fs.statSync(target).isDirectory() ? 'tree' : 'blob'
      token.attrSet('href', `${repository}/${kind}/${version}/${name}${anchor ? '#' + anchor : ''}`)
    }
  })
}

// diagrams leaves blocks of Mermaid to the theme.
function diagrams(md) {
  const { fence } = md.renderer.rules
  md.renderer.rules.fence = (tokens, i, ...rest) => tokens[i].info === 'mermaid'
    ? `<Diagram text="${encodeURIComponent(tokens[i].content)}" />`
    : fence(tokens, i, ...rest)
}

// checkLinks fails if a page links to a file or heading that is not there. VitePress looks for pages only.
function checkLinks({ outDir }) {
  const pages = new Map()
  for (const file of fs.readdirSync(outDir, { recursive: true }).filter(f => f.endsWith('.html'))) {
    const html = fs.readFileSync(path.join(outDir, file), 'utf8')
    pages.set(base(version) + file, {
      ids: new Set([...html.matchAll(/ id="([^"]+)"/g)].map(m => m[1])),
      links: [...html.matchAll(/<a [^>]*href="([^"]+)"/g)].map(m => m[1]).filter(l => !/^[a-z]+:/.test(l)),
    })
  }
  const dead = []
  let checked = 0
  for (const [from, { links }] of pages) {
    for (const link of links) {
      const { pathname, hash } = new URL(link, host + from)
      const target = pages.get(pathname.replace(/\/$/, '/index.html'))
      if (!target || (hash && !target.ids.has(decodeURIComponent(hash.slice(1))))) {
        dead.push(`${from}: the link ${link} leads nowhere`)
      }
      checked++
    }
  }
  if (dead.length || !checked) throw new Error([...dead, `${checked} links`].join('\n'))
  console.log(`${version}: ${pages.size} pages, ${checked} links`)
}

export default defineConfig({
  title: 'outbox',
  description: 'A transactional outbox for Go and PostgreSQL',
  head: [['link', { rel: 'icon', href: icon }]],
  base: base(version),
  srcDir: docs,
  outDir: path.join(here, 'dist', 'outbox', version),
  rewrites: { 'README.md': 'index.md' },
  markdown: { anchor: { slugify }, config: md => md.use(outward).use(diagrams) },
  buildEnd: checkLinks,
  vite: {
    build: { chunkSizeWarningLimit: 2000 }, // kB; search and Mermaid are loaded when they are used
    // The pages are not beside node_modules.
    resolve: { alias: [{ find: /^vue($|\/)/, replacement: path.join(here, 'node_modules/vue') + '$1' }] },
  },
  themeConfig: {
    logo: icon,
    nav: [{
      text: version,
      items: versions.map(v => ({ text: v, link: host + base(v), target: '_self', noIcon: true })),
    }],
    sidebar: sidebar(),
    outline: [2, 3],
    search: {
      provider: 'local',
      options: { miniSearch: { searchOptions: { boostDocument: page => page.includes('/guide/') ? 2 : 1 } } },
    },
    socialLinks: [{ icon: 'github', link: repository }],
    ...(version === 'main' && { editLink: { pattern: `${repository}/edit/main/docs/:path` } }),
  },
})
