package wire

import (
	"encoding/json"
	"net/http"
	"testing"
	"unicode/utf8"

	"github.com/seed46cd37a8/atoll"
)

// FuzzError checks that a client gets an error with a kind for each response, and that the error
// survives another hop.
func FuzzError(f *testing.F) {
	for _, err := range []error{
		atoll.E("exec", "web", atoll.ErrStopped, nil), atoll.Errorf("read", "", atoll.ErrNotExist, "no \x00 é"),
		atoll.E("", "", atoll.ErrUnavailable, atoll.ErrTimeout),
	} {
		body, _ := json.Marshal(EncodeError(err, "r"))
		f.Add(http.StatusInternalServerError, body)
	}
	f.Add(200, []byte(`{"kind":"new kind","also":["x"]}`))
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		err := DecodeError(status, body, "op", "id")
		if err == nil || atoll.KindOf(err) == "" || err.Error() == "" {
			t.Fatalf("DecodeError(%d, %q) = %v", status, body, err)
		}
		again, jsonErr := json.Marshal(EncodeError(err, ""))
		if jsonErr != nil {
			t.Fatal(jsonErr)
		}
		twice := DecodeError(status, again, "op", "id")
		if atoll.KindOf(twice) != atoll.KindOf(err) {
			t.Errorf("%q became %q on the second hop", atoll.KindOf(err), atoll.KindOf(twice))
		}
		if utf8.ValidString(err.Error()) && len(err.Error()) < maxErrorMessage && twice.Error() != err.Error() {
			t.Errorf("%q became %q on the second hop", err, twice)
		}
	})
}
