package obs

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/lmittmann/tint"
	"golang.org/x/term"
)

// Log formats.
const (
	FormatAuto = "auto"
	FormatText = "text"
	FormatJSON = "json"
)

// NewLog makes the program's log on w. level is debug, info, warn or error;
// FormatAuto is text with colours when w is a terminal and JSON otherwise.
func NewLog(w io.Writer, level, format string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("log level: %w", err)
	}
	terminal := false
	if f, ok := w.(*os.File); ok {
		terminal = term.IsTerminal(int(f.Fd()))
	}
	switch format {
	case FormatText:
	case FormatJSON:
		return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: l})), nil
	case FormatAuto:
		if !terminal {
			return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: l})), nil
		}
	default:
		return nil, fmt.Errorf("log format %q is not one of %s, %s, %s", format, FormatAuto, FormatText, FormatJSON)
	}
	return slog.New(tint.NewHandler(w, &tint.Options{Level: l, TimeFormat: time.TimeOnly, NoColor: !terminal})), nil
}
