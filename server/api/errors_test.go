package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/seed46cd37a8/atoll"
)

// sendError returns the status and the error that a client gets for err.
func sendError(t *testing.T, err error) (int, error) {
	t.Helper()
	rec := httptest.NewRecorder()
	writeError(rec, "req-1", err)
	if got := rec.Header().Get("Content-Type"); got != "application/json" {
		t.Errorf("content type %q", got)
	}
	return rec.Code, decodeError(rec.Code, rec.Body.Bytes(), "exec", "box")
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

func TestErrorsKeepTheKindOfTheirCause(t *testing.T) {
	sent := atoll.E("exec", "web", atoll.ErrUnavailable, atoll.E("dial", "vm", atoll.ErrTimeout, nil))
	_, got := sendError(t, sent)
	if atoll.KindOf(got) != atoll.ErrUnavailable || !errors.Is(got, atoll.ErrTimeout) || !errors.Is(got, os.ErrDeadlineExceeded) {
		t.Errorf("%v came back as %v", sent, got)
	}
	if errors.Is(got, atoll.ErrDenied) {
		t.Errorf("%v is denied", got)
	}
}

func TestErrorsOfOthersGetTheKindOfTheirStatus(t *testing.T) {
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
		err := decodeError(c.status, []byte(c.body), "list", "")
		if atoll.KindOf(err) != c.want {
			t.Errorf("%d %.20q: %v is %q, want %q", c.status, c.body, err, atoll.KindOf(err), c.want)
		}
		if len(err.Error()) > 400 || strings.ContainsAny(err.Error(), "\n\t") {
			t.Errorf("%d: the message has %d bytes, or more than one line: %q", c.status, len(err.Error()), err)
		}
	}
}

// FuzzError checks that a client gets an error with a kind for each response, and that the error
// survives another hop.
func FuzzError(f *testing.F) {
	for _, err := range []error{
		atoll.E("exec", "web", atoll.ErrStopped, nil), atoll.Errorf("read", "", atoll.ErrNotExist, "no \x00 é"),
		atoll.E("", "", atoll.ErrUnavailable, atoll.ErrTimeout),
	} {
		body, _ := json.Marshal(encodeError(err, "r"))
		f.Add(http.StatusInternalServerError, body)
	}
	f.Add(200, []byte(`{"kind":"new kind","also":["x"]}`))
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		err := decodeError(status, body, "op", "id")
		if err == nil || atoll.KindOf(err) == "" || err.Error() == "" {
			t.Fatalf("decodeError(%d, %q) = %v", status, body, err)
		}
		again, jsonErr := json.Marshal(encodeError(err, ""))
		if jsonErr != nil {
			t.Fatal(jsonErr)
		}
		twice := decodeError(status, again, "op", "id")
		if atoll.KindOf(twice) != atoll.KindOf(err) {
			t.Errorf("%q became %q on the second hop", atoll.KindOf(err), atoll.KindOf(twice))
		}
		if utf8.ValidString(err.Error()) && len(err.Error()) < maxErrorMessage && twice.Error() != err.Error() {
			t.Errorf("%q became %q on the second hop", err, twice)
		}
	})
}
