package trust

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// installCert calls Install and fails the test on an error.
func installCert(t *testing.T, files Files, a authority, env ...string) (vars, warnings []string) {
	t.Helper()
	vars, warnings, err := Install(files, []byte(a.pem), env)
	if err != nil {
		t.Fatal(err)
	}
	return vars, warnings
}

// countCerts returns how often a bundle has each of the certificates.
func countCerts(bundle string, list ...authority) []int {
	counts := make([]int, len(list))
	for block, rest := pem.Decode([]byte(bundle)); block != nil; block, rest = pem.Decode(rest) {
		for i, a := range list {
			if bytes.Equal(block.Bytes, a.cert.Raw) {
				counts[i]++
			}
		}
	}
	return counts
}

func TestBundleForms(t *testing.T) {
	root, other, ours, older := newAuthority(t, "root"), newAuthority(t, "other"), newAuthority(t, "ours"), newAuthority(t, "older")
	block := func(a authority) string { return beginLine + "\n" + a.pem + endLine + "\n" }
	crlf := func(text string) string { return strings.ReplaceAll(text, "\n", "\r\n") }
	long := strings.Repeat("# A root\n"+root.pem, 500) // 300 KB
	for name, test := range map[string]struct{ have, want string }{
		"bundle":                       {root.pem, root.pem + block(ours)},
		"empty bundle":                 {"", block(ours)},
		"long bundle":                  {long, long + block(ours)},
		"no newline at the end":        {strings.TrimSuffix(root.pem, "\n"), root.pem + block(ours)},
		"CRLF":                         {crlf(root.pem), crlf(root.pem) + block(ours)},
		"CRLF with an older block":     {crlf(root.pem + block(older)), crlf(root.pem) + block(ours)},
		"our block":                    {root.pem + block(ours), root.pem + block(ours)},
		"our block in the middle":      {root.pem + block(ours) + other.pem, root.pem + block(ours) + other.pem},
		"older block":                  {root.pem + block(older), root.pem + block(ours)},
		"older block in the middle":    {root.pem + block(older) + "# other\n" + other.pem, root.pem + "# other\n" + other.pem + block(ours)},
		"older block and ours":         {root.pem + block(older) + block(ours), root.pem + block(ours)},
		"ours from an anchor":          {root.pem + ours.pem, root.pem + ours.pem},
		"anchor and older block":       {root.pem + ours.pem + block(older), root.pem + ours.pem},
		"last line is missing":         {root.pem + beginLine + "\n" + older.pem + other.pem, root.pem + other.pem + block(ours)},
		"block was cut off":            {root.pem + block(ours)[:200], root.pem + block(ours)},
		"another block after that":     {root.pem + block(older)[:200] + "\n" + other.pem, root.pem + other.pem + block(ours)},
		"lines without block":          {root.pem + beginLine + "\n" + endLine + "\n" + other.pem, root.pem + other.pem + block(ours)},
		"first line before other text": {beginLine + "\n\n" + other.pem, beginLine + "\n\n" + other.pem + block(ours)},
		"last line alone":              {root.pem + endLine + "\n", root.pem + endLine + "\n" + block(ours)},
	} {
		t.Run(name, func(t *testing.T) {
			files := newFiles(debianBundle, test.have)
			vars, warnings := installCert(t, files, ours)
			if got := files.data[debianBundle]; got != test.want {
				t.Errorf("bundle = %s\nwant %s", got, test.want)
			}
			if len(warnings) > 0 || !slices.Contains(vars, "SSL_CERT_FILE="+debianBundle) {
				t.Errorf("Install = %q, warnings %q", vars, warnings)
			}
			if wrote := slices.Contains(files.writes, debianBundle); wrote != (test.have != test.want) {
				t.Errorf("bundle was written: %v", wrote)
			}
			files.writes = nil
			if installCert(t, files, ours); len(files.writes) > 0 {
				t.Errorf("the second Install wrote %q", files.writes)
			}
		})
	}
}

// A system has some bundles, of which some are links.
func TestSystems(t *testing.T) {
	root, ours := newAuthority(t, "root"), newAuthority(t, "ours")
	for name, test := range map[string]struct {
		have    []string
		links   map[string]string
		bundles []string // that must have the certificate
		anchors []string
	}{
		"Debian":                 {[]string{debianBundle, "/etc/debian_version"}, nil, []string{debianBundle}, []string{debianAnchor}},
		"Debian without bundle":  {[]string{"/etc/debian_version"}, nil, []string{debianBundle}, []string{debianAnchor}},
		"Alpine":                 {[]string{debianBundle, "/etc/alpine-release"}, map[string]string{alpineBundle: debianBundle}, []string{debianBundle}, []string{debianAnchor}},
		"Alpine without package": {[]string{alpineBundle, "/etc/alpine-release"}, nil, []string{alpineBundle}, []string{debianAnchor}},
		"Fedora":                 {[]string{fedoraBundle}, map[string]string{redHatBundle: fedoraBundle}, []string{redHatBundle}, []string{redHatAnchor}},
		"two files of Red Hat":   {[]string{redHatBundle, fedoraBundle}, nil, []string{redHatBundle, fedoraBundle}, []string{redHatAnchor}},
		"openSUSE":               {[]string{suseBundle}, nil, []string{suseBundle}, nil},
		"nothing":                {nil, nil, []string{debianBundle}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			files := newFiles()
			for _, name := range test.have {
				files.data[name] = root.pem
			}
			files.links = test.links
			vars, warnings := installCert(t, files, ours)
			if len(warnings) > 0 || !slices.Contains(vars, "SSL_CERT_FILE="+test.bundles[0]) || !slices.Contains(vars, "NODE_EXTRA_CA_CERTS="+ownFile) {
				t.Errorf("Install = %q, warnings %q", vars, warnings)
			}
			for _, name := range test.bundles {
				if data, _ := files.ReadFile(name); countCerts(string(data), ours)[0] != 1 {
					t.Errorf("%s = %s", name, data)
				}
			}
			want := slices.Concat(test.anchors, []string{ownFile})
			for _, name := range []string{debianAnchor, redHatAnchor, ownFile} {
				if got, exists := files.data[name]; exists != slices.Contains(want, name) || exists && got != ours.pem {
					t.Errorf("%s = %q, exists: %v", name, got, exists)
				}
			}
		})
	}
}

// The system can make its bundle again, with an anchor and without our lines. Then the certificate of a moved sandbox must go, too.
func TestOldAnchor(t *testing.T) {
	root, older, ours := newAuthority(t, "root"), newAuthority(t, "older"), newAuthority(t, "ours")
	files := newFiles(debianBundle, root.pem)
	installCert(t, files, older)
	files.data[debianBundle] = root.pem + files.data[debianAnchor]
	installCert(t, files, ours)
	if got := countCerts(files.data[debianBundle], root, older, ours); !slices.Equal(got, []int{1, 0, 1}) {
		t.Errorf("counts of root, older and ours = %v, want 1, 0, 1", got)
	}
}

func TestVariables(t *testing.T) {
	root, ours := newAuthority(t, "root"), newAuthority(t, "ours")
	files := newFiles(debianBundle, root.pem)
	vars, _ := installCert(t, files, ours, "PATH=/bin", "npm_config_other=1", "CURL_CA_BUNDLE=")
	want := []string{
		"SSL_CERT_FILE=" + debianBundle, "REQUESTS_CA_BUNDLE=" + debianBundle, "CURL_CA_BUNDLE=" + debianBundle, "GIT_SSL_CAINFO=" + debianBundle,
		"PIP_CERT=" + debianBundle, "AWS_CA_BUNDLE=" + debianBundle, "CARGO_HTTP_CAINFO=" + debianBundle, "CODEX_CA_CERTIFICATE=" + debianBundle,
		"NODE_EXTRA_CA_CERTS=" + ownFile, "DENO_CERT=" + ownFile,
	}
	if !slices.Equal(vars, want) {
		t.Errorf("vars = %q, want %q", vars, want)
	}
	// The variables can be in an image of the sandbox.
	files.writes = nil
	if vars, warnings := installCert(t, files, ours, vars...); len(vars)+len(warnings)+len(files.writes) > 0 {
		t.Errorf("with its variables, Install = %q, warnings %q, wrote %q", vars, warnings, files.writes)
	}
}

func TestChosen(t *testing.T) {
	root, ours := newAuthority(t, "root"), newAuthority(t, "ours")
	for name, test := range map[string]struct {
		env     string // "" sets nothing
		own     string // the data of /own.pem; "" is no file
		npmrc   string // of root
		fault   string
		warning string // "" if /own.pem gets the certificate, "-" if nothing is to do
	}{
		"bundle":           {env: "PIP_CERT=/own.pem", own: root.pem},
		"added roots":      {env: "NODE_EXTRA_CA_CERTS=/own.pem", own: root.pem},
		"npm":              {env: "NPM_CONFIG_CAFILE=/own.pem", own: root.pem},
		"npmrc":            {npmrc: "a=b\ncafile = \"/own.pem\"\n", own: root.pem},
		"npmrc, the last":  {npmrc: strings.Repeat("cafile=/none.pem\n", 1000) + "cafile=/own.pem", own: root.pem},
		"npmrc, too long":  {npmrc: strings.Repeat("#\n", maxNPM) + "cafile=/own.pem", own: root.pem, warning: "-"},
		"a private key":    {env: "PIP_CERT=/own.pem", own: root.pem + "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", warning: "private key"},
		"npmrc not read":   {env: "npm_config_cafile=" + debianBundle, npmrc: "cafile=/own.pem", own: root.pem, warning: "-"},
		"missing file":     {env: "CURL_CA_BUNDLE=/own.pem", warning: "CURL_CA_BUNDLE=/own.pem do not trust"},
		"relative":         {env: "DENO_CERT=own.pem", own: root.pem, warning: "DENO_CERT=own.pem do not trust"},
		"not PEM":          {env: "AWS_CA_BUNDLE=/own.pem", own: "\x30\x82", warning: "no certificates in PEM"},
		"not readable":     {env: "GIT_SSL_CAINFO=/own.pem", own: root.pem, fault: "/own.pem", warning: "fault"},
		"not writable":     {env: "GIT_SSL_CAINFO=/own.pem", own: root.pem, fault: "write /own.pem", warning: "fault"},
		"SSL_CERT_DIR":     {env: "SSL_CERT_DIR=/certs", own: root.pem, warning: "SSL_CERT_DIR=/certs is set"},
		"other variable":   {env: "NODE_TLS_REJECT_UNAUTHORIZED=1", own: root.pem, warning: "-"},
		"missing npm file": {npmrc: "cafile=/own.pem", warning: "/root/.npmrc: cafile=/own.pem do not trust"},
	} {
		t.Run(name, func(t *testing.T) {
			files := newFiles(debianBundle, root.pem, "/root/.npmrc", test.npmrc)
			if test.own != "" {
				files.data["/own.pem"] = test.own
			}
			files.faults[test.fault] = fmt.Errorf("fault")
			vars, warnings := installCert(t, files, ours, test.env)
			variable, _, _ := strings.Cut(test.env, "=")
			if slices.ContainsFunc(vars, func(v string) bool { return variable != "" && strings.HasPrefix(v, variable+"=") }) {
				t.Errorf("Install = %q, and replaces %s", vars, test.env)
			}
			added := countCerts(files.data["/own.pem"], ours)[0] == 1
			switch text := strings.Join(warnings, "\n"); {
			case (test.warning == "" || test.warning == "-") && (added != (test.warning == "") || text != ""):
				t.Errorf("added = %v, warnings %q", added, warnings)
			case test.warning != "" && test.warning != "-" && (len(warnings) != 1 || !strings.Contains(text, test.warning)):
				t.Errorf("warnings %q, want %q", warnings, test.warning)
			case test.warning != "" && files.data["/own.pem"] != test.own:
				t.Error("Install has changed the file")
			}
		})
	}
}

func TestFaults(t *testing.T) {
	root, ours := newAuthority(t, "root"), newAuthority(t, "ours")
	fault := fmt.Errorf("read-only file system")

	files := newFiles(debianBundle, root.pem)
	files.faults["write "+debianBundle] = fault
	if _, _, err := Install(files, []byte(ours.pem), nil); err == nil || !strings.Contains(err.Error(), debianBundle) {
		t.Errorf("Install with a bundle that cannot be written = %v", err)
	}

	files = newFiles(debianBundle, root.pem, alpineBundle, root.pem)
	files.faults[debianBundle] = fmt.Errorf("is a directory")
	vars, warnings := installCert(t, files, ours)
	if !slices.Contains(vars, "SSL_CERT_FILE="+alpineBundle) || len(warnings) != 1 || !strings.Contains(warnings[0], debianBundle) {
		t.Errorf("Install with a directory as first bundle = %q, %q", vars, warnings)
	}
	delete(files.data, alpineBundle)
	if vars, _ := installCert(t, files, ours); !slices.Equal(vars, []string{"NODE_EXTRA_CA_CERTS=" + ownFile, "DENO_CERT=" + ownFile}) {
		t.Errorf("Install without a bundle that can be read = %q", vars)
	}

	files = newFiles(debianBundle, root.pem)
	files.faults["write "+debianAnchor] = fault
	if _, warnings := installCert(t, files, ours); len(warnings) != 1 || !strings.Contains(warnings[0], debianAnchor) {
		t.Errorf("warnings without an anchor = %q", warnings)
	}

	for _, cert := range []string{"", "no PEM", "-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\n"} {
		if _, _, err := Install(newFiles(), []byte(cert), nil); err == nil {
			t.Errorf("Install accepts %q", cert)
		}
	}
}

// The file of an authority has its key, which must not get into the sandbox.
func TestKey(t *testing.T) {
	ours := newAuthority(t, "ours")
	files := newFiles("/etc/debian_version", "13")
	key := "-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\n"
	if _, _, err := Install(files, []byte(ours.pem+key), nil); err != nil {
		t.Fatal(err)
	}
	for name, data := range files.data {
		if strings.Contains(data, "PRIVATE") {
			t.Errorf("%s has the key", name)
		}
	}
}

func FuzzSplitBundle(f *testing.F) {
	f.Add(beginLine + "\n-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n" + endLine + "\n")
	f.Add("-----BEGIN CERTIFICATE-----\r\n" + beginLine + "\r\n-----END")
	f.Fuzz(func(t *testing.T, data string) {
		var joined []byte
		for _, p := range splitBundle([]byte(data)) {
			joined = append(joined, p.text...)
		}
		if string(joined) != data {
			t.Errorf("parts of %q are %q", data, joined)
		}
		once := addCertificate([]byte(data), []byte{0, 0, 0}, []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), nil)
		if twice := addCertificate(once, []byte{0, 0, 0}, nil, nil); string(twice) != string(once) {
			t.Errorf("%q changes to %q", once, twice)
		}
	})
}
