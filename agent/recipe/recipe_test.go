package recipe

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

// loadOwn returns Atoll's own recipes.
func loadOwn(t *testing.T) Recipes {
	t.Helper()
	all, err := Load("")
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Load validates the recipes, which must name only known sets of hosts.
func TestBuiltin(t *testing.T) {
	all := loadOwn(t)
	want := []string{"aider", "amp", "claude", "codex", "copilot", "gemini", "goose", "opencode", "shell"}
	if got := all.Names(); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, r := range all {
		if r.Title == "" || !strings.HasSuffix(r.About, ".") || r.Source != "" {
			t.Errorf("%s: title %q, about %q, source %q", r.Name, r.Title, r.About, r.Source)
		}
		p := Params{Home: "/root", Workdir: "/work", Secrets: map[string]string{}}
		for _, s := range r.Secrets {
			p.Secrets[s.Name] = `sk-placeholder"of-a-key`
		}
		files, err := r.RenderFiles(p)
		if err != nil || len(files) != len(r.Files) {
			t.Errorf("%s: %d files, %v", r.Name, len(files), err)
		}
		for _, f := range files {
			if filepath.Ext(f.Path) == ".json" && !json.Valid(f.Content) {
				t.Errorf("%s: %s is not JSON: %s", r.Name, f.Path, f.Content)
			}
		}
	}
}

func TestCommand(t *testing.T) {
	tests := []struct {
		agent string
		start Start
		want  string
	}{
		{"claude", Start{}, "claude --dangerously-skip-permissions"},
		{"claude", Start{Prompt: "Go on", Headless: true, Args: []string{"--model", "opus"}}, "claude --dangerously-skip-permissions --model opus -p --|Go on"},
		{"claude", Start{Prompt: "Go", Headless: true, Resume: true}, "claude --dangerously-skip-permissions --continue -p --|Go"},
		{"codex", Start{Prompt: "Go", Headless: true, Resume: true}, "codex exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox resume --last --|Go"},
		{"codex", Start{Resume: true}, "codex resume --last --no-daemon --dangerously-bypass-approvals-and-sandbox"},
		{"gemini", Start{}, "gemini --yolo"},
		{"gemini", Start{Prompt: "- Go"}, "gemini --yolo|--prompt-interactive=- Go"},
		{"shell", Start{Prompt: "ls | wc", Headless: true}, "bash -l -c|ls | wc"},
	}
	all := loadOwn(t)
	for _, test := range tests {
		r, err := all.Find(test.agent)
		if err != nil {
			t.Fatal(err)
		}
		// The last part of want, after |, is one argument.
		words, last, more := strings.Cut(test.want, "|")
		want := strings.Fields(words)
		if more {
			want = append(want, last)
		}
		if got, err := r.Command(test.start); !slices.Equal(got, want) || err != nil {
			t.Errorf("%+v: got %q, %v, want %q", test.start, got, err, want)
		}
	}
	own := &Recipe{Exec: "own", Args: []string{"-x"}}
	if got, err := own.Command(Start{Args: []string{"-y"}}); !slices.Equal(got, []string{"own", "-x", "-y"}) || err != nil {
		t.Errorf("without lists: got %q, %v", got, err)
	}
}

func TestCommandFaults(t *testing.T) {
	tests := []struct {
		agent string
		start Start
		kind  error
		want  string
	}{
		{"claude", Start{Headless: true}, atoll.ErrInvalid, "it needs a prompt"},
		{"amp", Start{Prompt: "Go", Headless: true, Resume: true}, atoll.ErrUnsupported, "only in a terminal"},
		{"shell", Start{Resume: true}, atoll.ErrUnsupported, "cannot resume"},
		{"opencode", Start{Prompt: "Go", Resume: true}, atoll.ErrUnsupported, "start it without a prompt"},
	}
	all := loadOwn(t)
	for _, test := range tests {
		r, err := all.Find(test.agent)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := r.Command(test.start); !errors.Is(err, test.kind) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s %+v: got %q, %v, want %q", test.agent, test.start, got, err, test.want)
		}
	}
}

func TestFind(t *testing.T) {
	all := loadOwn(t)
	for name, want := range map[string]string{"cluade": "did you mean claude", "xyz": "the known ones are aider, amp, "} {
		if _, err := all.Find(name); !errors.Is(err, atoll.ErrNotExist) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", name, err, want)
		}
	}
}

func TestSecrets(t *testing.T) {
	tests := []struct {
		agent string
		env   map[string]string
		want  string // the names and sources, or the error
	}{
		{"claude", map[string]string{"CLAUDE_CODE_OAUTH_TOKEN": "t"}, "CLAUDE_CODE_OAUTH_TOKEN=env:CLAUDE_CODE_OAUTH_TOKEN"},
		{"claude", nil, "needs a key: set ANTHROPIC_API_KEY or CLAUDE_CODE_OAUTH_TOKEN"},
		{"copilot", map[string]string{"GITHUB_TOKEN": "a", "GH_TOKEN": "b"}, "COPILOT_GITHUB_TOKEN=env:GH_TOKEN"},
		{"copilot", nil, "needs a key: set COPILOT_GITHUB_TOKEN, GH_TOKEN or GITHUB_TOKEN"},
		{"opencode", map[string]string{"OPENAI_API_KEY": "a", "GEMINI_API_KEY": "b"}, "OPENAI_API_KEY=env:OPENAI_API_KEY GOOGLE_GENERATIVE_AI_API_KEY=env:GEMINI_API_KEY"},
		{"amp", nil, "needs a key: set AMP_API_KEY"},
		{"shell", nil, ""},
	}
	all := loadOwn(t)
	for _, test := range tests {
		r, err := all.Find(test.agent)
		if err != nil {
			t.Fatal(err)
		}
		found, err := r.FindSecrets(func(name string) string { return test.env[name] })
		if err != nil {
			if !errors.Is(err, atoll.ErrNotExist) || test.want == "" || !strings.HasSuffix(err.Error(), test.want) {
				t.Errorf("%s: got %v, want %q", test.agent, err, test.want)
			}
			continue
		}
		var got []string
		for _, s := range found {
			got = append(got, s.Name+"="+s.Source)
			if len(s.Hosts) == 0 {
				t.Errorf("%s: %s has no hosts", test.agent, s.Name)
			}
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%s: got %q, want %q", test.agent, got, test.want)
		}
	}
}

func TestFiles(t *testing.T) {
	all := loadOwn(t)
	claude, _ := all.Find("claude")
	p := Params{Home: "/root", Workdir: `/wo"rk`, Secrets: map[string]string{"ANTHROPIC_API_KEY": "sk-ant-api03-0123456789abcdefghij"}}
	files, err := claude.RenderFiles(p)
	if err != nil || files[0].When != WhenMerge || files[0].Path != ".claude/.claude.json" {
		t.Fatalf("got %+v, %v", files, err)
	}
	var state struct {
		Responses struct{ Approved []string } `json:"customApiKeyResponses"`
		Projects  map[string]map[string]bool  `json:"projects"`
	}
	if err := json.Unmarshal(files[0].Content, &state); err != nil || !slices.Equal(state.Responses.Approved, []string{"0123456789abcdefghij"}) ||
		!state.Projects[`/wo"rk`]["hasTrustDialogAccepted"] {
		t.Errorf("got %s, %v", files[0].Content, err)
	}
	env, err := claude.RenderEnv(p)
	if err != nil || env["CLAUDE_CONFIG_DIR"] != "/root/.claude" || env["IS_SANDBOX"] != "1" {
		t.Errorf("got %v, %v", env, err)
	}
	codex, _ := all.Find("codex")
	files, err = codex.RenderFiles(Params{Home: "/root", Workdir: "/work"})
	if err != nil || len(files) != 1 || files[0].Path != ".codex/config.toml" || files[0].When != WhenMissing || !strings.Contains(string(files[0].Content), `[projects."/work"]`) {
		t.Errorf("without a key: got %+v, %v", files, err)
	}
}

func TestMerge(t *testing.T) {
	tests := []struct{ old, content, want string }{
		{"", `{"a": 1}`, `{"a":1}`},
		{`{"b": 12345678901234567890, "t": {"x": [1, 2]}}`, `{"a": true, "t": {"x": [2, 3], "y": "z"}}`, `{"a":true,"b":12345678901234567890,"t":{"x":[1,2,3],"y":"z"}}`},
		{`{"a": 1, "l": 2}`, `{"a": {"b": 1}, "l": []}`, `{"a":{"b":1},"l":[]}`},
	}
	for _, test := range tests {
		got, err := Merge([]byte(test.old), []byte(test.content))
		var compact strings.Builder
		for field := range strings.FieldsSeq(string(got)) {
			compact.WriteString(field)
		}
		if err != nil || compact.String() != test.want {
			t.Errorf("%s: got %s, %v", test.old, got, err)
		}
	}
	if _, err := Merge([]byte("[1]"), []byte("{}")); err == nil || !strings.Contains(err.Error(), "cannot add to the file") {
		t.Errorf("a list: got %v", err)
	}
}

func TestUserFiles(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"claude.yaml": "command: my-claude\nheadless: ['${ARGS}', '${PROMPT}']\n",
		"own.yaml":    "name: own\ncommand: own\nheadless: ['${ARGS}', '${PROMPT}']\nallow: [npm, example.com]\n",
		"notes.txt":   "not a recipe",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	r, err := all.Find("claude")
	if err != nil || r.Exec != "my-claude" || r.Source != filepath.Join(dir, "claude.yaml") || len(r.Secrets) != 0 {
		t.Errorf("got %+v, %v", r, err)
	}
	if _, err := all.Find("own"); err != nil {
		t.Error(err)
	}
	if all, err := Load(filepath.Join(dir, "missing")); err != nil || len(all) != len(loadOwn(t)) {
		t.Errorf("without a directory: %d recipes, %v", len(all), err)
	}
}

func TestFaults(t *testing.T) {
	const good = "command: own\nheadless: ['${ARGS}', '${PROMPT}']\n"
	tests := map[string]struct{ text, want string }{
		"empty":          {"", "the file is empty"},
		"no YAML":        {"a: [", "yaml:"},
		"a list":         {"[1]", "cannot unmarshal"},
		"unknown key":    {good + "alow: [npm]\n", `line 3: unknown key "alow": did you mean allow`},
		"far key":        {good + "xyzzyplugh: 1\n", "the known ones are about, allow, args, "},
		"key below":      {good + "secrets: [{nam: A}]\n", `unknown key "secrets.nam": did you mean name`},
		"another name":   {"name: other\n" + good, `name: "other" must be the name of the file, "own"`},
		"no command":     {"headless: ['${ARGS}', '${PROMPT}']\n", "write the name of the program"},
		"command line":   {"command: own -x\nheadless: ['${ARGS}', '${PROMPT}']\n", "its arguments belong below args"},
		"no prompt":      {"command: own\n", "headless: write arguments with ${PROMPT}"},
		"no args":        {"command: own\nheadless: ['${PROMPT}']\n", "headless: has no ${ARGS}"},
		"prompt in args": {good + "args: ['${PROMPT}']\n", "belong into interactive, headless and resume"},
		"set":            {good + "allow: [nmp]\n", `allow: "nmp" is not a set of hosts: did you mean npm`},
		"host":           {good + "allow: ['https://example.com']\n", "leave out the scheme"},
		"no hosts":       {good + "secrets: [{name: A}]\n", "secrets.A: write the hosts"},
		"set as host":    {good + "secrets: [{name: A, hosts: [npm]}]\n", "write a host, like api.example.com"},
		"same secret":    {good + "secrets: [{name: A, hosts: [a.example]}, {name: A, hosts: [a.example]}]\n", "secrets.A: is set twice"},
		"variable":       {good + "env: {a-b: c}\n", `env: "a-b" is not the name of a variable`},
		"secret in env":  {good + "env: {A: c}\nsecrets: [{name: A, hosts: [a.example]}]\n", "env: A is a secret"},
		"template":       {good + "env: {A: '{{.Homme}}'}\n", "can't evaluate field Homme"},
		"telemetry":      {good + "allow: ['*.example.com']\ntelemetry: [t.example.com]\n", `telemetry: t.example.com is open by the entry "*.example.com"`},
		"path":           {good + "state: [../x]\n", "write a path relative to the home directory"},
		"home":           {good + "state: [~/x]\n", "write a path relative to the home directory"},
		"when":           {good + "files: [{path: a, content: b, when: never}]\n", "use missing, always or merge"},
		"merge":          {good + "files: [{path: a.toml, content: b, when: merge}]\n", "merge is for files with JSON"},
		"merge of lists": {good + "files: [{path: a.json, content: '[1]', when: merge}]\n", "write a JSON object"},
		"two ways":       {good + "install: {npm: [a@1.2.3], pip: [a==1.2.3]}\n", "set one of npm, pip and script only"},
		"npm version":    {good + "install: {npm: ['@a/b']}\n", "write it with its version, NAME@1.2.3"},
		"pip version":    {good + "install: {pip: [a]}\n", "write it with its version, NAME==1.2.3"},
		"needs":          {good + "install: {needs: ['node 20']}\n", "like git or node>=20"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "own.yaml"), []byte(test.text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := Load(dir)
			if !errors.Is(err, atoll.ErrInvalid) || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "own.yaml") {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}
