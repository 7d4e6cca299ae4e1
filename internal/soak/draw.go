package soak

import (
	"errors"
	"fmt"
	"image/color"
	"os"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// Size of the picture.
const (
	pictureWidth  = 16 * vg.Inch
	pictureHeight = 10 * vg.Inch
)

var (
	blue   = color.RGBA{31, 119, 180, 255}
	orange = color.RGBA{255, 127, 14, 255}
	red    = color.RGBA{214, 39, 40, 255}
	green  = color.RGBA{44, 160, 44, 255}
	grey   = color.RGBA{170, 170, 170, 255}
	purple = color.RGBA{148, 103, 189, 255}
)

// draw makes the picture: latencies above, with a mark for each second in which the
// broker rolled, trimmed or compacted, and what the machine lost; below, the process as
// a share of its median over the last half.
func (r *Report) draw(file string) error {
	latency, err := r.latencyPlot()
	if err != nil {
		return err
	}
	resources, err := r.resourcePlot()
	if err != nil {
		return err
	}
	img := vgimg.New(pictureWidth, pictureHeight)
	canvas := draw.New(img)
	plots := [][]*plot.Plot{{latency}, {resources}}
	tiles := draw.Tiles{Rows: 2, Cols: 1, PadTop: vg.Millimeter, PadBottom: vg.Millimeter, PadLeft: vg.Millimeter, PadRight: 4 * vg.Millimeter, PadY: 4 * vg.Millimeter}
	for i, row := range plot.Align(plots, tiles, canvas) {
		plots[i][0].Draw(row[0])
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = vgimg.PngCanvas{Canvas: img}.WriteTo(f)
	return errors.Join(err, f.Close())
}

// points are a figure of each second; what is not positive is left out: a logarithmic
// axis has no place for it.
func (r *Report) points(of func(*Second) float64) plotter.XYs {
	var xys plotter.XYs
	for i := range r.Seconds {
		if v := of(&r.Seconds[i]); v > 0 {
			xys = append(xys, plotter.XY{X: float64(r.Seconds[i].At), Y: v})
		}
	}
	return xys
}

func addLine(p *plot.Plot, name string, xys plotter.XYs, c color.Color, width vg.Length) error {
	if len(xys) == 0 {
		return nil
	}
	line, err := plotter.NewLine(xys)
	if err != nil {
		return fmt.Errorf("plot %s: %w", name, err)
	}
	line.Color, line.Width = c, width
	p.Add(line)
	p.Legend.Add(name, line)
	return nil
}

func (r *Report) latencyPlot() (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = fmt.Sprintf("publishes, %d a second, %d B; baseline p99.9 %.2f ms", r.Rate, recordBytes, r.Baseline)
	p.X.Label.Text, p.Y.Label.Text = "seconds", "milliseconds"
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Legend.Top, p.Legend.Left = true, true
	p.Add(plotter.NewGrid())
	lines := []struct {
		name  string
		of    func(*Second) float64
		color color.Color
		width vg.Length
	}{
		{"machine: latest sleep", func(s *Second) float64 { return s.SleepLate }, grey, vg.Points(0.5)},
		{"machine: longest write and flush", func(s *Second) float64 { return s.FlushTook }, purple, vg.Points(0.5)},
		{"p50", func(s *Second) float64 { return s.P50 }, green, vg.Points(1)},
		{"p99", func(s *Second) float64 { return s.P99 }, orange, vg.Points(1)},
		{"p99.9", func(s *Second) float64 { return s.P999 }, blue, vg.Points(1)},
	}
	for _, l := range lines {
		if err := addLine(p, l.name, r.points(l.of), l.color, l.width); err != nil {
			return nil, err
		}
	}
	marks := r.points(func(s *Second) float64 {
		if !s.Marked() {
			return 0
		}
		return s.P999
	})
	if len(marks) > 0 {
		m, err := plotter.NewScatter(marks)
		if err != nil {
			return nil, err
		}
		m.GlyphStyle = draw.GlyphStyle{Color: red, Radius: vg.Points(2), Shape: draw.CircleGlyph{}}
		p.Add(m)
		p.Legend.Add("roll, trim or compaction", m)
	}
	if n := len(r.Seconds); n > 1 && r.Baseline > 0 {
		limit := plotter.XYs{{X: 0, Y: standsOut * r.Baseline}, {X: float64(n - 1), Y: standsOut * r.Baseline}}
		if err := addLine(p, fmt.Sprintf("%d times the baseline", standsOut), limit, red, vg.Points(0.5)); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (r *Report) resourcePlot() (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = "the broker's process, 100 % is the median of the last half"
	p.X.Label.Text, p.Y.Label.Text = "seconds", "per cent"
	p.Legend.Top, p.Legend.Left = true, true
	p.Add(plotter.NewGrid())
	if err := addLine(p, "processors used by others", r.points(func(s *Second) float64 { return 100 * s.Others }), grey, vg.Points(0.5)); err != nil {
		return nil, err
	}
	half := r.Seconds[len(r.Seconds)/2:]
	for _, l := range []struct {
		name  string
		of    func(*Second) float64
		unit  float64
		color color.Color
	}{
		{"resident memory, MiB", func(s *Second) float64 { return s.Resident }, 1 << 20, blue},
		{"goroutines", func(s *Second) float64 { return s.Goroutines }, 1, orange},
		{"descriptors", func(s *Second) float64 { return s.Descriptors }, 1, green},
	} {
		usual := median(half, l.of)
		if usual == 0 {
			continue
		}
		xys := r.points(func(s *Second) float64 { return 100 * l.of(s) / usual })
		if err := addLine(p, fmt.Sprintf("%s: %.1f", l.name, usual/l.unit), xys, l.color, vg.Points(1)); err != nil {
			return nil, err
		}
	}
	return p, nil
}
