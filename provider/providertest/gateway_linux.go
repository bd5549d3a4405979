package providertest

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/testworld"
)

// A gatewayCheck checks the gateway of one provider in a world.
type gatewayCheck struct {
	p     atoll.Provider
	world *testworld.World
	dir   string // of the provider's state
}

// gatewayKey is a value that must not be anywhere but in a request.
const gatewayKey = "sk-ant-api03-ValueThatNobodyMaySee0123456789"

// CheckGateway checks that a provider with Caps.Gateway keeps the promises of Network and Secret, with the servers of a world. dir is the
// directory of its state. The image of its sandboxes has curl.
func CheckGateway(t *testing.T, p atoll.Provider, world *testworld.World, dir string) {
	if !p.Info().Caps.Gateway {
		t.Fatal("the provider has no Caps.Gateway")
	}
	c := &gatewayCheck{p, world, dir}
	t.Run("the value of a secret goes to its hosts only", c.checkSecret)
	t.Run("the value of a secret is nowhere", c.checkTraces)
	t.Run("requests are allowed and denied", c.checkRequests)
	t.Run("names and ports are denied with mode on", c.checkDenied)
	t.Run("a secret without a value is refused", c.checkMissing)
	t.Run("a secret in a store is read", c.checkStore)
	t.Run("bad policies are refused", c.checkBadPolicies)
}

func (c *gatewayCheck) createSandbox(t *testing.T, spec atoll.Spec) atoll.Sandbox {
	t.Helper()
	spec.Network.Allow = append(spec.Network.Allow, testworld.Address)
	sb, err := c.p.Create(t.Context(), &spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sb.Remove(context.Background(), atoll.RemoveVolumes()); err != nil {
			t.Error(err)
		}
	})
	return sb
}

// runScript returns the output of a script inside.
func (c *gatewayCheck) runScript(t *testing.T, sb atoll.Sandbox, script string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Scale(time.Minute))
	defer cancel()
	res, err := atoll.Capture(ctx, sb, &atoll.Command{Args: []string{"sh", "-c", script}}, 1<<20)
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return string(res.Stdout) + string(res.Stderr)
}

func keySpec(secret atoll.Secret) atoll.Spec {
	secret.Name = "KEY"
	if secret.Value == "" && secret.Source == "" {
		secret.Value = gatewayKey
	}
	return atoll.Spec{Network: atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{"other.example"}}, Secrets: []atoll.Secret{secret}}
}

func (c *gatewayCheck) checkSecret(t *testing.T) {
	sb := c.createSandbox(t, keySpec(atoll.Secret{Hosts: []string{"api.example"}}))
	placeholder := strings.TrimSpace(c.runScript(t, sb, "echo $KEY"))
	if len(placeholder) != len(gatewayKey) || placeholder == gatewayKey || !strings.HasPrefix(placeholder, "sk-ant-api03-") {
		t.Errorf("the placeholder is %q, want a text like the value", placeholder)
	}
	for _, option := range []string{"--http1.1", "--http2"} {
		c.world.Requests()
		got := c.runScript(t, sb, `curl -sS `+option+` -H "x-key: $KEY" -u "me:$KEY" -d "$KEY" https://api.example/v1`)
		all := c.world.Requests()
		if got != "POST api.example/v1\n" || len(all) != 1 {
			t.Fatalf("%s: got %q, and the server %q", option, got, all)
		}
		basic := base64.StdEncoding.EncodeToString([]byte("me:" + gatewayKey))
		if !strings.Contains(all[0], "X-Key: "+gatewayKey) || !strings.Contains(all[0], "Basic "+basic) || !strings.HasSuffix(all[0], "\n"+placeholder) {
			t.Errorf("%s: the server got %q", option, all[0])
		}
	}
	for _, command := range []string{
		`curl -sS -H "x-key: $KEY" https://api.example/ --connect-to api.example:443:other.example:443 -H "Host: other.example"`,
		`curl -sS "https://api.example/?key=$KEY"`,
		`curl -sS -H "x-key: $KEY" http://api.example/`,
		`curl -sS -H "x-key: $KEY" http://other.example/`,
	} {
		if got := c.runScript(t, sb, command); !strings.HasPrefix(got, "Atoll refused this request: ") {
			t.Errorf("%s: got %q", command, got)
		}
		if all := c.world.Requests(); len(all) > 0 {
			t.Errorf("%s: the server got %q", command, all)
		}
	}
	// TLS to a host that no rule names is not ended, and the placeholder is worth nothing there.
	if got := c.runScript(t, sb, `curl -ksS -H "x-key: $KEY" https://other.example/`); got != "GET other.example/\n" || strings.Contains(strings.Join(c.world.Requests(), ""), gatewayKey) {
		t.Errorf("another host: got %q", got)
	}
}

// checkTraces looks for the value in all that the inside can read, and in all files of the provider.
func (c *gatewayCheck) checkTraces(t *testing.T) {
	sb := c.createSandbox(t, keySpec(atoll.Secret{Hosts: []string{"api.example"}}))
	c.runScript(t, sb, `curl -sS -H "x-key: $KEY" https://api.example/`)
	part := gatewayKey[len("sk-ant-api03-"):]
	st, err := sb.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprintf("%+v %#v", st, st); strings.Contains(text, part) || len(st.Spec.Secrets) != 1 || st.Spec.Secrets[0].Placeholder == "" {
		t.Errorf("the status has the value, or no secret: %s", text)
	}
	if c.p.Info().Caps.Snapshot {
		snap, err := atoll.TakeSnapshot(t.Context(), sb)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = atoll.RemoveSnapshot(context.Background(), c.p, snap.ID) }()
		c.searchFiles(t, part)
		spec := keySpec(atoll.Secret{Hosts: []string{"api.example"}})
		spec.Snapshot = snap.ID
		again := c.createSandbox(t, spec)
		if one, two := c.runScript(t, sb, "echo $KEY"), c.runScript(t, again, "echo $KEY"); one != two {
			t.Errorf("the placeholder is %q in a sandbox from a snapshot, want %q, which its processes have", two, one)
		}
	}
	c.searchFiles(t, part)
	script := fmt.Sprintf(`half=%s; rest=%s
		for f in /proc/[0-9]*/environ /proc/[0-9]*/cmdline; do cat $f 2>/dev/null | tr '\0' '\n' | grep -F "$half$rest" | grep -v half=; done
		env | grep -F "$half$rest"; grep -rsF "$half$rest" /etc /run /work /tmp /root; true`, part[:10], part[10:])
	if got := c.runScript(t, sb, script); got != "" {
		t.Errorf("inside: %q", got)
	}
}

// searchFiles looks for text in all files of the provider.
func (c *gatewayCheck) searchFiles(t *testing.T, text string) {
	t.Helper()
	n := 0
	err := filepath.WalkDir(c.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil // it has gone meanwhile, or is a socket
		}
		data, err := os.ReadFile(path)
		if err == nil && bytes.Contains(data, []byte(text)) {
			t.Errorf("%s has the value", path)
		}
		n++
		return nil
	})
	if err != nil || n == 0 {
		t.Errorf("searched %d files: %v", n, err)
	}
}

func (c *gatewayCheck) checkRequests(t *testing.T) {
	spec := atoll.Spec{Network: atoll.Network{
		Mode: atoll.NetworkEgress, Allow: []string{"GET api.example/v1", "other.example", "port.example:80"}, Deny: []string{"DELETE other.example", "*.bad.example"},
		Rules: []atoll.NetworkRule{{Match: "other.example/team", SetHeaders: map[string]string{"X-Team": "a"}}},
	}}
	sb := c.createSandbox(t, spec)
	for command, want := range map[string]string{
		"https://api.example/v1/x":                  "GET api.example/v1/x\n",
		"http://api.example/v1/x":                   "GET api.example/v1/x\n",
		"-d x https://api.example/v1":               "Atoll refused this request: api.example: POST /v1 is not in --allow\n",
		"https://api.example/v2":                    "Atoll refused this request: api.example: GET /v2 is not in --allow\n",
		"--path-as-is https://api.example/v1/../v2": "Atoll refused this request: api.example: GET /v2 is not in --allow\n",
		"-X DELETE https://other.example/x":         `Atoll refused this request: other.example: --deny has "DELETE other.example"` + "\n",
		"https://other.example/team":                "GET other.example/team\n",
		"http://port.example/":                      "GET port.example/\n",
	} {
		// A reason that --allow lacks an entry has a command after it, if an entry can open the request.
		opens := strings.HasSuffix(want, "is not in --allow\n") && !strings.Contains(command, "..")
		got, advice, advised := strings.Cut(c.runScript(t, sb, "curl -sS "+command), ". Ask your user to run: ")
		if advised {
			got += "\n"
		}
		if got != want || advised != opens || advised && !strings.HasPrefix(advice, "atoll net allow "+sb.ID()+" '") {
			t.Errorf("%s: got %q with the advice %q, want %q", command, got, advice, want)
		}
	}
	if all := strings.Join(c.world.Requests(), ""); strings.Count(all, "X-Team: a") != 1 {
		t.Errorf("the server got %q, want a team once", all)
	}
	if refused, err := atoll.RefusalsOf(t.Context(), sb); err != nil || refused.Total < 4 {
		t.Errorf("refusals: %+v, %v", refused, err)
	}
}

func (c *gatewayCheck) checkDenied(t *testing.T) {
	sb := c.createSandbox(t, atoll.Spec{Network: atoll.Network{Mode: atoll.NetworkOn, Deny: []string{"bad.example", "*.bad.example", "port.example:80", testworld.Address + ":8080"}}})
	for command, want := range map[string]string{
		"-k https://good.example/":                    "GET good.example/\n",
		"-k https://port.example/":                    "GET port.example/\n",
		"http://port.example/":                        `Atoll refused this request: port.example: --deny has "port.example:80"` + "\n",
		"https://bad.example/":                        "curl: (6) Could not resolve host: bad.example\n",
		"http://x.bad.example/":                       "curl: (6) Could not resolve host: x.bad.example\n",
		"-H 'Host: bad.example' http://good.example/": `Atoll refused this request: bad.example: --deny has "bad.example"` + "\n",
	} {
		if got := c.runScript(t, sb, "curl -sS "+command); got != want {
			t.Errorf("%s: got %q, want %q", command, got, want)
		}
	}
	for _, command := range []string{
		"--connect-to bad.example:443:good.example:443 https://bad.example/", "http://" + testworld.Address + ":8080/",
	} {
		if got := c.runScript(t, sb, "curl -sS "+command); strings.Contains(got, "GET") {
			t.Errorf("%s: got %q", command, got)
		}
	}
}

// checkMissing checks that a start without the value leaves a sandbox that says so, and a file is read again.
func (c *gatewayCheck) checkMissing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	write := func(value string) {
		if err := os.WriteFile(file, []byte(value+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first-value-0123456789")
	get := `curl -sS -H "x-key: $KEY" https://api.example/`
	byFile := c.createSandbox(t, keySpec(atoll.Secret{Hosts: []string{"api.example"}, Source: "file:" + file}))
	for _, value := range []string{"first-value-0123456789", "second"} {
		write(value)
		c.world.Requests()
		c.runScript(t, byFile, get)
		if all := c.world.Requests(); len(all) != 1 || !strings.Contains(all[0], "X-Key: "+value+"\r\n") {
			t.Errorf("the server got %q, want %s", all, value)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if got := c.runScript(t, byFile, get); !strings.Contains(got, "the placeholder of a secret has no value now") {
		t.Errorf("without the file: got %q", got)
	}
	byValue := c.createSandbox(t, keySpec(atoll.Secret{Hosts: []string{"api.example"}}))
	if err := byValue.Stop(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if err := byValue.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := c.runScript(t, byValue, get); !strings.Contains(got, "the placeholder of a secret has no value now") {
		t.Errorf("started again without the value: got %q", got)
	}
}

// checkStore checks that a value comes from a store, also when the sandbox starts again, and that a store without it is reported. The test
// links the clients of stores, and its process is the program that reads them.
func (c *gatewayCheck) checkStore(t *testing.T) {
	var value atomic.Value
	value.Store("value-in-the-store-0123")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	vault := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("X-Vault-Token") != "token-of-the-test":
			w.WriteHeader(http.StatusForbidden)
		case r.URL.Path == "/v1/kv/ci":
			fmt.Fprintf(w, `{"data": {"token": %q}}`, value.Load())
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	})}
	go func() { _ = vault.Serve(listener) }()
	defer vault.Close()
	t.Setenv("VAULT_ADDR", "http://"+listener.Addr().String())
	t.Setenv("VAULT_TOKEN", "token-of-the-test")
	sb := c.createSandbox(t, keySpec(atoll.Secret{Hosts: []string{"api.example"}, Source: "vault:kv/ci#token"}))
	get := func(want string) {
		t.Helper()
		c.world.Requests()
		text := c.runScript(t, sb, `curl -sS -H "x-key: $KEY" https://api.example/`)
		if all := c.world.Requests(); len(all) != 1 || !strings.Contains(all[0], "X-Key: "+want+"\r\n") {
			t.Errorf("got %q, and the server %q, want %s", text, all, want)
		}
	}
	get("value-in-the-store-0123")
	c.searchFiles(t, "value-in-the-store-0123")
	c.searchFiles(t, "token-of-the-test")
	value.Store("another-value")
	for _, step := range []func() error{func() error { return sb.Stop(t.Context(), 0) }, func() error { return sb.Start(t.Context()) }} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	get("another-value")
	spec := keySpec(atoll.Secret{Hosts: []string{"api.example"}, Source: "vault:kv/none#token"})
	if sb, err := c.p.Create(t.Context(), &spec); atoll.KindOf(err) != atoll.ErrNotExist || !strings.Contains(err.Error(), "no secret at kv/none") {
		t.Errorf("without a value in the store: got %v, %v", sb, err)
	}
}

func (c *gatewayCheck) checkBadPolicies(t *testing.T) {
	egress := func(nw atoll.Network) atoll.Network {
		nw.Mode = atoll.NetworkEgress
		return nw
	}
	for name, spec := range map[string]atoll.Spec{
		"deny":             {Network: egress(atoll.Network{Deny: []string{"https://a.example"}})},
		"rule":             {Network: egress(atoll.Network{Rules: []atoll.NetworkRule{{Match: "10.0.0.1"}}})},
		"requests with on": {Network: atoll.Network{Mode: atoll.NetworkOn, Allow: []string{"GET a.example"}}},
		"no network":       {Secrets: keySpec(atoll.Secret{Hosts: []string{"a.example"}}).Secrets},
		"no hosts":         keySpec(atoll.Secret{}),
		"an address":       keySpec(atoll.Secret{Hosts: []string{"10.0.0.1"}}),
		"no file":          keySpec(atoll.Secret{Hosts: []string{"a.example"}, Source: "file:/nowhere/key"}),
		"two lines":        keySpec(atoll.Secret{Hosts: []string{"a.example"}, Value: "a\nb"}),
		"twice":            {Network: egress(atoll.Network{}), Env: []string{"KEY=x"}, Secrets: keySpec(atoll.Secret{Hosts: []string{"a.example"}}).Secrets},
	} {
		sb, err := c.p.Create(t.Context(), &spec)
		if kind := atoll.KindOf(err); kind != atoll.ErrInvalid && kind != atoll.ErrNotExist {
			t.Errorf("%s: got %v, want it refused", name, err)
		}
		if err == nil {
			_ = sb.Remove(context.Background(), atoll.RemoveVolumes())
		}
	}
	if list, err := c.p.List(t.Context(), atoll.Filter{}); len(list) > 0 || err != nil {
		t.Errorf("%d sandboxes remain, %v", len(list), err)
	}
}
