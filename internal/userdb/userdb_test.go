package userdb

import (
	"reflect"
	"strings"
	"testing"
)

func TestFind(t *testing.T) {
	accounts := []byte("root:x:0:0:root:/root:/bin/sh\nbob:x:1000:1001::/home/bob:/bin/sh\nbroken:x\n")
	crowd := strings.Repeat("somebody,", 10_000)
	group := []byte("root:x:0:\nbob:x:1001:\ncrowd:x:20:" + crowd + "bob\r\nwheel:x:10:alice,bob")
	accounts = append([]byte(crowd+"\n"), accounts...)
	for user, want := range map[string]User{
		"":          {Home: "/root"},
		"root":      {Home: "/root"},
		"bob":       {UID: 1000, GID: 1001, Groups: []uint32{20, 10}, Home: "/home/bob"},
		"1000":      {UID: 1000, GID: 1001, Groups: []uint32{20, 10}, Home: "/home/bob"},
		"bob:wheel": {UID: 1000, GID: 10, Home: "/home/bob"},
		"bob:7":     {UID: 1000, GID: 7, Home: "/home/bob"},
		"4242":      {UID: 4242, Home: "/"},
		"4242:17":   {UID: 4242, GID: 17, Home: "/"},
	} {
		if got, err := Find(user, accounts, group); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("Find(%q) = %+v, %v, want %+v", user, got, err, want)
		}
	}
	for _, user := range []string{"eve", "bob:nogroup", "broken", "4294967295", "0:4294967295"} {
		if got, err := Find(user, accounts, group); err == nil {
			t.Errorf("Find(%q) = %+v, want an error", user, got)
		}
	}
	if got, err := Find("0", nil, nil); err != nil || got.Home != "/root" {
		t.Errorf("Find(0) without accounts = %+v, %v", got, err)
	}
}
