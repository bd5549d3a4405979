package api

import (
	"log/slog"
	"net/http"
	"sync"
	"time"
)

// refusalInterval is the least time between two lines of the log about refused tokens: a stranger must not fill it.
const refusalInterval = time.Second

// refusals count refused tokens for the log. The zero value is ready to use.
type refusals struct {
	mu      sync.Mutex
	last    time.Time
	skipped int // since the last line
}

// logRefusal logs that the token of r is not valid, with the client's address.
func (f *refusals) logRefusal(log *slog.Logger, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.last) < refusalInterval {
		f.skipped++
		return
	}
	attrs := []any{"op", r.Method + " " + r.URL.Path, "from", r.RemoteAddr}
	if f.skipped > 0 {
		attrs = append(attrs, "others", f.skipped)
	}
	f.last, f.skipped = time.Now(), 0
	log.WarnContext(r.Context(), "token refused", attrs...)
}
