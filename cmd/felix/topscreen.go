package main

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
)

// full shows views on the whole terminal until q, ctrl-C or a signal, and leaves the
// terminal as it was. A broker that cannot be asked at first is an error; one that goes
// away later is waited for.
func (t *top) full(ctx context.Context, in, out *os.File) error {
	first, err := t.look(ctx)
	if err != nil {
		return err
	}
	p := tea.NewProgram(&topScreen{top: t, ctx: ctx, view: first}, tea.WithContext(ctx), tea.WithInput(in), tea.WithOutput(out), tea.WithoutSignalHandler())
	_, err = p.Run()
	if errors.Is(err, tea.ErrProgramKilled) && ctx.Err() != nil {
		return nil // by a signal, which is one way to end it
	}
	return err
}

// topScreen is the state of the screen. Its methods are called by one goroutine.
type topScreen struct {
	*top
	ctx     context.Context // of the program that runs it
	size    topSize
	view    *topView
	problem string
}

// looked is a look that has ended.
type looked struct {
	view *topView
	err  error
}

// next looks once more after the interval. There is one at a time.
func (s *topScreen) next() tea.Msg {
	if !s.wait(s.ctx) {
		return nil
	}
	v, err := s.look(s.ctx)
	return looked{v, err}
}

// Init implements tea.Model.
func (s *topScreen) Init() tea.Cmd { return s.next }

// Update implements tea.Model.
func (s *topScreen) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch m := msg.(type) {
	case tea.WindowSizeMsg:
		s.size = topSize{m.Width, m.Height}
	case tea.KeyPressMsg:
		switch m.String() {
		case "q", "Q", "ctrl+c", "esc":
			return s, tea.Quit
		}
	case looked:
		if m.err != nil {
			s.problem = m.err.Error() + "; shown is what it said at " + s.view.Time.Format(time.TimeOnly)
		} else {
			s.view, s.problem = m.view, ""
		}
		return s, s.next
	}
	return s, nil
}

// View implements tea.Model.
func (s *topScreen) View() tea.View {
	v := tea.NewView(strings.TrimSuffix(s.view.render(s.size, s.problem), "\n"))
	v.AltScreen = true
	v.WindowTitle = "felix top"
	return v
}
