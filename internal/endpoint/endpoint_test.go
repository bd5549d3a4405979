package endpoint

import (
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	for _, tt := range []struct {
		text  string
		plain bool
		says  string // part of the error; "" for none
	}{
		{"https://s3.example.com", false, ""},
		{"https://s3.example.com:9000", false, ""},
		{"http://s3.example.com", true, ""},
		{"http://localhost:8000", false, ""},
		{"http://127.0.0.2:8000", false, ""},
		{"http://[::1]:8000", false, ""},
		{"http://s3.example.com", false, "without TLS anybody on the network can read the data"},
		{"http://10.0.0.1:8000", false, "without TLS"},
		{"http://localhost.example.com", false, "without TLS"},
		{"https://user:hunter2@s3.example.com", false, "it contains credentials"},
		{"s3.example.com", false, "write it like https://host:port"},
		{"ftp://s3.example.com", true, "write it like"},
		{"https://", false, "write it like"},
		{"https://s3.example.com?x=1", false, "write it like"},
		{"https://s3.example.com#x", false, "write it like"},
		{"https://%zz", false, "endpoint: "},
	} {
		err := Check(tt.text, tt.plain)
		if tt.says == "" && err != nil || tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("%s, plain %v: %v, want an error with %q", tt.text, tt.plain, err, tt.says)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error has the password: %v", tt.text, err)
		}
	}
}
