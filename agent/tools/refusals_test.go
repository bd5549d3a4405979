package tools

import (
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/jobs"
)

func TestRefusalNote(t *testing.T) {
	name := atoll.Refusal{Host: "example.com", Protocol: "dns", Reason: "not in --allow"}
	address := atoll.Refusal{Host: "mirror.corp", Address: "10.1.2.3", Port: 443, Protocol: "tcp", Reason: "resolves to 10.1.2.3, a private address: --allow 10.1.2.3 opens it"}
	many := make([]atoll.Refusal, 7)
	for i := range many {
		many[i] = name
	}
	failed := func(stderr string) jobs.Ran {
		return jobs.Ran{NoNetwork: true, Stderr: jobs.Text{Data: []byte(stderr)}}
	}
	for what, test := range map[string]struct {
		ran  jobs.Ran
		want string
	}{
		"nothing refused":  {jobs.Ran{}, ""},
		"a name":           {jobs.Ran{Refused: []atoll.Refusal{name}}, "The network refused example.com: not in --allow. Trying again does not help."},
		"an address":       {jobs.Ran{Refused: []atoll.Refusal{name, address}}, "mirror.corp:443: resolves to 10.1.2.3, a private address: --allow 10.1.2.3 opens it."},
		"a way to open it": {jobs.Ran{Refused: []atoll.Refusal{name}, Allow: "atoll net allow web example.com"}, "help. If you need it, ask your user to run: atoll net allow web example.com"},
		"many":             {jobs.Ran{Refused: many}, "; and 2 others."},
		"no network, curl": {failed("curl: (6) Could not resolve host: example.com"), "The sandbox has no network"},
		"no network, node": {failed("npm ERR! getaddrinfo EAI_AGAIN registry.npmjs.org"), "The sandbox has no network"},
		"no network, pip":  {failed("[Errno -3] Temporary failure in name resolution"), "The sandbox has no network"},
		"another failure":  {failed("FAIL: TestSum: got 3, want 4"), ""},
	} {
		got := refusalNote(&test.ran)
		if test.want == "" && got != "" || !strings.Contains(got, test.want) {
			t.Errorf("%s: got %q, want %q", what, got, test.want)
		}
	}
}
