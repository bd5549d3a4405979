package audit

import (
	"cmp"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"mvdan.cc/sh/v3/syntax"
)

// A programRule lists flags whose arguments are secrets, and have names of other meanings elsewhere.
type programRule struct {
	program  string // pattern of its name
	login    bool   // one of the first two arguments must be login
	flags    []string
	attached bool   // the secret follows without a space: a word after the flag has another meaning
	user     string // the argument is a user, this separator and a secret; may be empty
}

var programRules = []programRule{
	{program: "mysql*", flags: []string{"-p"}, attached: true},
	{program: "mariadb*", flags: []string{"-p"}, attached: true},
	{program: "7z*", flags: []string{"-p"}, attached: true},
	{program: "docker", login: true, flags: []string{"-p"}},
	{program: "podman", login: true, flags: []string{"-p"}},
	{program: "nerdctl", login: true, flags: []string{"-p"}},
	{program: "buildah", login: true, flags: []string{"-p"}},
	{program: "skopeo", login: true, flags: []string{"-p"}},
	{program: "helm", login: true, flags: []string{"-p"}},
	{program: "oras", login: true, flags: []string{"-p"}},
	{program: "crane", login: true, flags: []string{"-p"}},
	{program: "az", login: true, flags: []string{"-p"}},
	{program: "oc", login: true, flags: []string{"-p"}},
	{program: "sshpass", flags: []string{"-p"}},
	{program: "twine", flags: []string{"-p"}},
	{program: "openssl", flags: []string{"-k"}},
	{program: "mongo*", flags: []string{"-p"}},
	{program: "redis-cli", flags: []string{"-a"}},
	{program: "ldap*", flags: []string{"-w"}},
	{program: "*zip", flags: []string{"-P"}},
	{program: "sqlcmd", flags: []string{"-P"}},
	{program: "plink", flags: []string{"-pw"}},
	{program: "ssh-keygen", flags: []string{"-N", "-P"}},
	{program: "user*", flags: []string{"-p"}},
	{program: "curl", flags: []string{"-u", "--user", "-U", "--proxy-user"}, user: ":"},
	{program: "curl", flags: []string{"-b", "--cookie", "--oauth2-bearer"}},
	{program: "http*", flags: []string{"-a", "--auth"}, user: ":"},
	{program: "xh", flags: []string{"-a", "--auth"}, user: ":"},
	{program: "smbclient", flags: []string{"-U", "--user"}, user: "%"},
}

// lastIsSecret reports whether the last argument of a program is a secret.
func lastIsSecret(name string, args []string) bool {
	switch name {
	case "htpasswd":
		return slices.ContainsFunc(args, regexp.MustCompile(`^-\w*b`).MatchString)
	case "vault":
		return len(args) > 1 && args[0] == "login" && !strings.HasPrefix(args[len(args)-1], "-")
	case "mc":
		return len(args) > 3 && args[0] == "alias" && args[1] == "set"
	case "git", "npm", "yarn", "aws", "gcloud", "pip":
		return len(args) > 2 && (args[0] == "config" || args[0] == "configure") && secretWord().MatchString(args[len(args)-2])
	}
	return false
}

var (
	// secretFlag returns the form of a flag whose argument is a secret.
	secretFlag = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(?:--?` + secretName + `|-\w+pass)$`) })
	// secretKey returns the form of a word before a secret, as in nmcli's "password X" and rclone's "secret_access_key X".
	secretKey = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^(?i:password|passphrase|passwd|(?:\w+_)?(?:secret|api|access|private|account)_(?:\w+_)?key|(?:auth|access|api)_token|client_secret)$`)
	})
	secretWord = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(secretName) })
)

var duration = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9.]+[smhd]?$`) })

// wrappers are programs whose arguments are a command.
var wrappers = []string{"sudo", "doas", "env", "exec", "command", "nohup", "nice", "time", "timeout", "xargs", "setsid", "stdbuf"}

// secretArgs returns the arguments of a command that are secrets, with the number of bytes at the beginning of each that
// are not.
func secretArgs(args []string) map[int]int {
	secrets := map[int]int{}
	for i := 1; i < len(args); i++ {
		if (secretFlag().MatchString(args[i-1]) || secretKey().MatchString(args[i-1])) && !strings.HasPrefix(args[i], "-") {
			secrets[i] = 0
		}
	}
	at := findProgram(args)
	if at == len(args) {
		return secrets
	}
	name, rest := path.Base(args[at]), args[at+1:]
	for _, rule := range programRules {
		if ok, _ := path.Match(rule.program, name); ok && (!rule.login || slices.Contains(rest[:min(2, len(rest))], "login")) {
			rule.findSecrets(args, at+1, secrets)
		}
	}
	if lastIsSecret(name, rest) {
		secrets[len(args)-1] = 0
	}
	return secrets
}

// findProgram returns the index of the program that a command runs in the end.
func findProgram(args []string) int {
	i := 0
	for i < len(args) && slices.Contains(wrappers, path.Base(args[i])) {
		for i++; i < len(args) && (strings.HasPrefix(args[i], "-") || strings.Contains(args[i], "=") || duration().MatchString(args[i])); i++ {
			if slices.Contains([]string{"-u", "-g", "-n", "-s", "-k"}, args[i]) {
				i++ // its value
			}
		}
	}
	return min(i, len(args))
}

// findSecrets adds the secrets in args from index i on.
func (r programRule) findSecrets(args []string, i int, secrets map[int]int) {
	add := func(i, from int) {
		if r.user != "" {
			user := strings.Index(args[i][from:], r.user)
			if user < 0 {
				return
			}
			from += user + len(r.user)
		}
		secrets[i] = from
	}
	for ; i < len(args); i++ {
		for _, flag := range r.flags {
			long := strings.HasPrefix(flag, "--")
			switch {
			case args[i] == flag && !r.attached && i+1 < len(args):
				add(i+1, 0)
			case long && strings.HasPrefix(args[i], flag+"="):
				add(i, len(flag)+1)
			case !long && len(flag) == 2 && len(args[i]) > 2 && strings.HasPrefix(args[i], flag):
				add(i, 2)
			}
		}
	}
}

// redactScript replaces the secrets in the commands of a shell's script, up to what is no script.
func redactScript(text string) string {
	var found []replacement
	add := func(word *syntax.Word, keep string) {
		from, to := int(word.Pos().Offset()), int(word.End().Offset())
		if from <= to && to <= len(text) {
			found = append(found, replacement{from, to, keep + mask})
		}
	}
	addInner := func(word *syntax.Word) {
		if from, to := quotedScript(word); from < to {
			if with := redactScript(text[from:to]); with != text[from:to] {
				found = append(found, replacement{from, to, with})
			}
		}
	}
	visit := func(node syntax.Node) bool {
		switch node := node.(type) {
		case *syntax.CallExpr:
			words := literalWords(text, node.Args)
			secrets := secretArgs(words)
			for i, word := range node.Args {
				if keep, ok := secrets[i]; ok {
					add(word, words[i][:min(keep, len(words[i]))])
				} else {
					addInner(word)
				}
			}
		case *syntax.BinaryCmd:
			if call := firstCall(node.X); call != nil && node.Op == syntax.Pipe && readsSecret(text, node.Y) && isEcho(text, call) {
				for _, word := range call.Args[1:] {
					add(word, "")
				}
			}
		case *syntax.Stmt:
			for _, redirect := range node.Redirs {
				if redirect.Op == syntax.WordHdoc && readsSecret(text, node) {
					add(redirect.Word, "")
				}
			}
		}
		return true
	}
	for stmt, err := range syntax.NewParser(syntax.Variant(syntax.LangBash)).StmtsSeq(strings.NewReader(text)) {
		if err != nil {
			break
		}
		syntax.Walk(stmt, visit)
	}
	slices.SortFunc(found, func(a, b replacement) int { return cmp.Or(a.from-b.from, b.to-a.to) })
	var b strings.Builder
	last := 0
	for _, r := range found {
		if r.from >= last { // else it is within the one before
			b.WriteString(text[last:r.from] + r.with)
			last = r.to
		}
	}
	return b.String() + text[last:]
}

// A replacement replaces a part of a script.
type replacement struct {
	from, to int
	with     string
}

// quotedScript returns the bounds of a word's text if the word is quoted as a whole and may be a script, such as the
// argument of su -c or ssh; else 0, 0.
func quotedScript(word *syntax.Word) (from, to int) {
	if len(word.Parts) != 1 {
		return 0, 0
	}
	switch part := word.Parts[0].(type) {
	case *syntax.SglQuoted:
		if !part.Dollar && strings.ContainsAny(part.Value, " <|") {
			return int(part.Left.Offset()) + 1, int(part.Right.Offset())
		}
	case *syntax.DblQuoted:
		if len(part.Parts) != 1 {
			return 0, 0
		}
		if lit, ok := part.Parts[0].(*syntax.Lit); ok && strings.ContainsAny(lit.Value, " <|") && !strings.Contains(lit.Value, `\`) {
			return int(lit.Pos().Offset()), int(lit.End().Offset())
		}
	}
	return 0, 0
}

// firstCall returns the first command of a pipeline, or nil.
func firstCall(stmt *syntax.Stmt) *syntax.CallExpr {
	for {
		switch cmd := stmt.Cmd.(type) {
		case *syntax.BinaryCmd:
			stmt = cmd.X
		case *syntax.CallExpr:
			return cmd
		default:
			return nil
		}
	}
}

// isEcho reports whether a command prints its arguments.
func isEcho(text string, call *syntax.CallExpr) bool {
	if len(call.Args) == 0 {
		return false
	}
	name := literalWords(text, call.Args[:1])[0]
	return name == "echo" || name == "printf"
}

// literalWords returns the values of words. The value of one with an expansion is its source.
func literalWords(text string, words []*syntax.Word) []string {
	all := make([]string, len(words))
	for i, word := range words {
		var b strings.Builder
		for _, part := range word.Parts {
			switch part := part.(type) {
			case *syntax.Lit:
				b.WriteString(part.Value)
			case *syntax.SglQuoted:
				b.WriteString(part.Value)
			case *syntax.DblQuoted:
				b.WriteString(strings.Trim(text[part.Pos().Offset():part.End().Offset()], `"`))
			default:
				b.WriteString(text[part.Pos().Offset():part.End().Offset()])
			}
		}
		all[i] = b.String()
	}
	return all
}

// readsSecret reports whether a command reads a secret from its input.
func readsSecret(text string, stmt *syntax.Stmt) bool {
	call, ok := stmt.Cmd.(*syntax.CallExpr)
	if !ok {
		return false
	}
	words := literalWords(text, call.Args)
	at := findProgram(words)
	if at == len(words) {
		return false
	}
	switch program := path.Base(words[at]); {
	case program == "chpasswd", program == "passwd" && slices.Contains(words, "--stdin"):
		return true
	case slices.ContainsFunc(words, regexp.MustCompile(`^--?(?:[\w-]*(?:password|passphrase|token|secret|key)-stdin|with-token)$`).MatchString):
		return true
	}
	return at > 0 && path.Base(words[0]) == "sudo" && slices.Contains(words[:at], "-S")
}
