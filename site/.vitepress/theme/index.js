// The default theme, with Mermaid's diagrams. A reader without JavaScript sees their text.
import { h, onMounted, ref, watch } from 'vue'
import { useData } from 'vitepress'
import DefaultTheme from 'vitepress/theme'
import './style.css'

// The page's lines are higher than the boxes that Mermaid makes for them.
const looks = { themeCSS: 'p { line-height: inherit; }' }
let drawn = 0

const Diagram = {
  props: { text: String },
  setup(props) {
    const { isDark } = useData()
    const svg = ref('')
    async function draw() {
      const { default: mermaid } = await import('mermaid') // only pages with a diagram load it
      mermaid.initialize({ startOnLoad: false, ...looks, theme: isDark.value ? 'dark' : 'default' })
      svg.value = (await mermaid.render(`diagram-${++drawn}`, decodeURIComponent(props.text))).svg
    }
    onMounted(draw)
    watch(isDark, draw)
    return () => svg.value
      ? h('div', { class: 'diagram', innerHTML: svg.value })
      : h('pre', decodeURIComponent(props.text))
  },
}

export default {
  extends: DefaultTheme,
  enhanceApp: ({ app }) => app.component('Diagram', Diagram),
}
