package main

import (
	"bytes"
	"fmt"
	"math"
	"text/template"
)

// bar is one side in a bar chart.
type bar struct {
	Name  string
	Value float64
	Color string
}

// line is one side in a line chart; its points are at even distances.
type line struct {
	Name   string
	Values []float64
	Color  string
}

// colors are those of the peers; "" is ours.
var colors = map[string]string{"": "#1f6feb", peerRiver: "#d1712b", peerWatermill: "#3a9a5b", peerRaw: "#8b949e"}

const (
	chartWidth  = 760
	labelWidth  = 300
	barHeight   = 22
	plotHeight  = 220
	valueMargin = 90
)

const head = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {{.Width}} {{.Height}}" font-family="sans-serif" font-size="12">
<rect width="{{.Width}}" height="{{.Height}}" fill="#ffffff"/>
<text x="8" y="20" font-size="14" font-weight="bold" fill="#1f2328">{{html .Title}}</text>
`

var barTemplate = template.Must(template.New("bars").Parse(head + `{{range .Bars}}<text x="{{.LabelX}}" y="{{.TextY}}" text-anchor="end" fill="#1f2328">{{html .Name}}</text>
<rect x="{{.X}}" y="{{.Y}}" width="{{printf "%.1f" .Width}}" height="16" fill="{{.Color}}"/>
<text x="{{printf "%.1f" .ValueX}}" y="{{.TextY}}" fill="#1f2328">{{.Text}}</text>
{{end}}</svg>
`))

var lineTemplate = template.Must(template.New("lines").Parse(head + `{{range .Grid}}<line x1="60" x2="{{$.Width}}" y1="{{.Y}}" y2="{{.Y}}" stroke="#d0d7de"/>
<text x="54" y="{{.Y}}" dy="4" text-anchor="end" fill="#57606a">{{.Text}}</text>
{{end}}{{range .Lines}}<polyline fill="none" stroke="{{.Color}}" stroke-width="2" points="{{.Points}}"/>
<rect x="60" y="{{.LegendY}}" width="12" height="12" fill="{{.Color}}"/><text x="78" y="{{.LegendY}}" dy="10" fill="#1f2328">{{html .Name}}</text>
{{end}}</svg>
`))

// barChart draws horizontal bars from 0, each with its value.
func barChart(title string, bars []bar) ([]byte, error) {
	most := 0.0
	for _, b := range bars {
		most = max(most, b.Value)
	}
	type drawn struct {
		Name, Color, Text   string
		LabelX, X, Y, TextY int
		Width, ValueX       float64
	}
	data := struct {
		Title         string
		Width, Height int
		Bars          []drawn
	}{Title: title, Width: chartWidth, Height: 36 + len(bars)*barHeight + 8}
	room := float64(chartWidth - labelWidth - valueMargin)
	for i, b := range bars {
		width := 0.0
		if most > 0 {
			width = room * b.Value / most
		}
		y := 34 + i*barHeight
		data.Bars = append(data.Bars, drawn{Name: b.Name, Color: b.Color, Text: number(b.Value), LabelX: labelWidth - 8, X: labelWidth, Y: y, TextY: y + 12,
			Width: max(width, 1), ValueX: labelWidth + max(width, 1) + 6})
	}
	var out bytes.Buffer
	err := barTemplate.Execute(&out, data)
	return out.Bytes(), err
}

// lineChart draws lines over a grid that begins with 0.
func lineChart(title string, lines []line) ([]byte, error) {
	most := 0.0
	for _, l := range lines {
		for _, v := range l.Values {
			most = max(most, v)
		}
	}
	most = niceAbove(most)
	type gridLine struct {
		Y    float64
		Text string
	}
	type drawn struct {
		Name, Color, Points string
		LegendY             int
	}
	const top = 36
	data := struct {
		Title         string
		Width, Height int
		Grid          []gridLine
		Lines         []drawn
	}{Title: title, Width: chartWidth, Height: top + plotHeight + 16 + 18*len(lines)}
	y := func(v float64) float64 { return top + plotHeight*(1-v/most) }
	for i := range 5 {
		v := most * float64(i) / 4
		data.Grid = append(data.Grid, gridLine{math.Round(y(v)), number(v)})
	}
	for i, l := range lines {
		points := ""
		for j, v := range l.Values {
			x := 60 + float64(chartWidth-80)*float64(j)/float64(max(len(l.Values)-1, 1))
			points += fmt.Sprintf("%.1f,%.1f ", x, y(v))
		}
		data.Lines = append(data.Lines, drawn{l.Name, l.Color, points, top + plotHeight + 12 + 18*i})
	}
	var out bytes.Buffer
	err := lineTemplate.Execute(&out, data)
	return out.Bytes(), err
}

// niceAbove is the least of 1, 2, 4, 5, 8 and 10 times a power of ten that is not below v.
func niceAbove(v float64) float64 {
	if v <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 4, 5, 8} {
		if m*power >= v {
			return m * power
		}
	}
	return 10 * power
}
