package config

import (
	"strings"
	"testing"
)

// The context has the precedence of the source that selects it, and no server gets the token of another one.
func TestContext(t *testing.T) {
	const contexts = "contexts:\n  prod: {url: 'https://prod', token: 'env:PROD', project: web}\n  bare: {url: 'https://bare'}\n"
	const plain = contexts + "url: http://file\ntoken: env:FILE\nproject: own\n"
	const selected = plain + "context: prod\n"
	flag := func(kv ...string) map[string]string {
		flags := map[string]string{}
		for i := 0; i < len(kv); i += 2 {
			flags[kv[i]] = kv[i+1]
		}
		return flags
	}
	for _, tt := range []struct {
		name, file          string
		env                 []string
		flags               map[string]string
		url, token, project string
	}{
		{"none", plain, nil, nil, "http://file", "env:FILE", "own"},
		{"selected in the file", selected, nil, nil, "https://prod", "env:PROD", "web"},
		{"default by flag", selected, nil, flag("context", "default"), "http://file", "env:FILE", "own"},
		{"default by variable", selected, []string{"ATOLL_CONTEXT=default"}, nil, "http://file", "env:FILE", "own"},
		{"by flag", plain, nil, flag("context", "prod"), "https://prod", "env:PROD", "web"},
		{"by variable", plain, []string{"ATOLL_CONTEXT=prod"}, nil, "https://prod", "env:PROD", "web"},
		{"without token and project", plain, nil, flag("context", "bare"), "https://bare", "", "default"},
		{"a variable names the server", selected, []string{"ATOLL_URL=http://env", "ATOLL_TOKEN=file:/t"}, nil, "http://env", "file:/t", "own"},
		{"a flag names the server", selected, nil, flag("url", "http://flag", "token", "env:T"), "http://flag", "env:T", "own"},
		{"a variable has the token", selected, []string{"ATOLL_TOKEN=file:/t"}, nil, "https://prod", "file:/t", "web"},
		{"a variable has the token of a context without one", plain, []string{"ATOLL_TOKEN=file:/t"}, flag("context", "bare"), "https://bare", "file:/t", "default"},
		{"variables of another server", plain, []string{"ATOLL_URL=http://env", "ATOLL_TOKEN=file:/t"}, flag("context", "bare"), "https://bare", "", "default"},
		{"a flag has the project", selected, nil, flag("project", "mine"), "https://prod", "env:PROD", "mine"},
		{"a variable has the project", selected, []string{"ATOLL_PROJECT=mine"}, nil, "https://prod", "env:PROD", "mine"},
	} {
		cfg, err := load(t, tt.file, tt.env, tt.flags)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if cfg.URL != tt.url || cfg.Token.Reference() != tt.token || cfg.Project != tt.project {
			t.Errorf("%s: %q, %q, %q, want %q, %q, %q", tt.name, cfg.URL, cfg.Token.Reference(), cfg.Project, tt.url, tt.token, tt.project)
		}
	}
	for _, tt := range []struct {
		name, file string
		env        []string
		flags      map[string]string
		want       string
	}{
		{"two flags", plain, nil, flag("context", "prod", "url", "http://x"), "--context and --url both name a server: leave one out"},
		{"two variables", plain, []string{"ATOLL_CONTEXT=prod", "ATOLL_URL=http://x"}, nil, "ATOLL_CONTEXT and ATOLL_URL both name a server: leave one out"},
		{"misspelt", plain, nil, flag("context", "pord"), `--context: no context is called "pord": the nearest known one is prod`},
		{"unknown", "context: x\n", nil, nil, `config.yaml:1: context: no context is called "x": atoll login URL adds one`},
		{"no address", "contexts: {a: {project: x}}\n", nil, nil, "contexts.a.url: write it like http://host:port or unix:///path"},
		{"a bad address", "contexts: {a: {url: prod}}\n", nil, nil, `contexts.a.url: "prod": write it like http://host:port`},
		{"a bad project", "contexts: {a: {url: 'http://x', project: 'a b'}}\n", nil, nil, "contexts.a.project: "},
		{"the name default", "contexts: {default: {url: 'http://x'}}\n", nil, nil, "the context default is the one without a server"},
		{"a secret in the file", "contexts: {a: {url: 'http://x', token: abc}}\n", nil, nil, "not the secret itself"},
	} {
		if _, err := load(t, tt.file, tt.env, tt.flags); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q in it", tt.name, err, tt.want)
		}
	}
}
