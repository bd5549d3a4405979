package api

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

// sendError returns the status and the error that a client gets for err.
func sendError(t *testing.T, err error) (int, error) {
	t.Helper()
	rec := httptest.NewRecorder()
	writeError(rec, "req-1", err)
	if got := rec.Header().Get("Content-Type"); got != "application/json" {
		t.Errorf("content type %q", got)
	}
	return rec.Code, wire.DecodeError(rec.Code, rec.Body.Bytes(), "exec", "box")
}

func TestErrorsKeepTheirKind(t *testing.T) {
	sentinels := []error{
		fs.ErrInvalid, fs.ErrPermission, fs.ErrNotExist, fs.ErrExist, errors.ErrUnsupported, os.ErrDeadlineExceeded, os.ErrProcessDone,
	}
	for _, kind := range atoll.Kinds() {
		for what, sent := range map[string]error{
			"alone":       atoll.E("exec", "web", kind, nil),
			"with cause":  atoll.Errorf("exec", "web", kind, "the %s broke", "thing"),
			"without op":  atoll.E("", "", kind, errors.New("why")),
			"wrapped":     fmt.Errorf("outside: %w", atoll.E("exec", "web", kind, nil)),
			"a bare kind": kind,
		} {
			status, got := sendError(t, sent)
			if status < 400 {
				t.Errorf("%s %s: status %d", kind, what, status)
			}
			if atoll.KindOf(got) != kind {
				t.Errorf("%s %s: came back as %s", kind, what, atoll.KindOf(got))
			}
			if !strings.Contains(got.Error(), strings.TrimPrefix(sent.Error(), "outside: ")) {
				t.Errorf("%s %s: %q came back as %q", kind, what, sent, got)
			}
			for _, s := range append(sentinels, atoll.ErrExecFailed) {
				if errors.Is(got, s) != errors.Is(sent, s) {
					t.Errorf("%s %s: errors.Is(%v) is %v, was %v", kind, what, s, errors.Is(got, s), errors.Is(sent, s))
				}
			}
		}
	}
}

func TestErrorsKeepOpAndID(t *testing.T) {
	for _, c := range []struct {
		sent, want error
	}{
		{atoll.Errorf("read", "web", atoll.ErrNotExist, "no /x"), atoll.Errorf("read", "web", atoll.ErrNotExist, "no /x")},
		{invalidError("bad"), atoll.Errorf("exec", "box", atoll.ErrInvalid, "bad")},
		{io.ErrUnexpectedEOF, atoll.Errorf("exec", "box", atoll.ErrInternal, "unexpected EOF")},
	} {
		if _, got := sendError(t, c.sent); got.Error() != c.want.Error() {
			t.Errorf("%q came back as %q, want %q", c.sent, got, c.want)
		}
	}
}

func TestErrorsKeepKindOfCause(t *testing.T) {
	sent := atoll.E("exec", "web", atoll.ErrUnavailable, atoll.E("dial", "vm", atoll.ErrTimeout, nil))
	_, got := sendError(t, sent)
	if atoll.KindOf(got) != atoll.ErrUnavailable || !errors.Is(got, atoll.ErrTimeout) || !errors.Is(got, os.ErrDeadlineExceeded) {
		t.Errorf("%v came back as %v", sent, got)
	}
	if errors.Is(got, atoll.ErrDenied) {
		t.Errorf("%v is denied", got)
	}
}

func TestProxyErrorsGetKindOfStatus(t *testing.T) {
	for _, c := range []struct {
		status int
		body   string
		want   atoll.Kind
	}{
		{401, "", atoll.ErrDenied},
		{403, "<html>\n\t<body>\n", atoll.ErrDenied},
		{404, "404 page not found", atoll.ErrUnsupported},
		{400, "{}", atoll.ErrInvalid},
		{413, "{", atoll.ErrInvalid},
		{429, "", atoll.ErrExhausted},
		{500, "oops", atoll.ErrInternal},
		{502, "bad gateway", atoll.ErrUnavailable},
		{503, strings.Repeat("x", 1000), atoll.ErrUnavailable},
		{504, "\xff\xfe", atoll.ErrUnavailable},
	} {
		err := wire.DecodeError(c.status, []byte(c.body), "list", "")
		if atoll.KindOf(err) != c.want {
			t.Errorf("%d %.20q: %v is %q, want %q", c.status, c.body, err, atoll.KindOf(err), c.want)
		}
		if len(err.Error()) > 400 || strings.ContainsAny(err.Error(), "\n\t") {
			t.Errorf("%d: the message has %d bytes, or more than one line: %q", c.status, len(err.Error()), err)
		}
	}
}
