package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"text/template"
)

// nodeName is the name of the node in the cluster.
const nodeName = "node1"

// A program is a program of the node with its arguments, the first of which is its name.
type program struct {
	path string // "" for a program of this file
	args []string
}

// listPrograms returns the programs of the node in any order: each is restarted until it finds what it
// needs.
func (n *nodeConfig) listPrograms() []program {
	server := "https://" + n.Address + ":6443"
	account, auth := n.filePath("pki", "account.key"), n.filePath("pki", "tokens.csv")
	kubeconfig := func(user string) string { return "--kubeconfig=" + n.filePath("pki", user+".kubeconfig") }
	return []program{
		{path: "/usr/bin/containerd", args: []string{"containerd", "--config", n.filePath("containerd.toml")}},
		{args: []string{
			"etcd", "--data-dir", n.filePath("etcd"), "--unsafe-no-fsync", "--log-level=warn", "--listen-client-urls=" + etcdURL, "--advertise-client-urls=" + etcdURL,
			"--listen-peer-urls=http://127.0.0.1:2380",
		}},
		{args: []string{
			"kube-apiserver", "--etcd-servers=" + etcdURL, "--bind-address=" + n.Address, "--advertise-address=" + n.Address, "--secure-port=6443",
			"--cert-dir=" + n.filePath("pki"), "--service-cluster-ip-range=" + n.Services, "--token-auth-file=" + auth, "--authorization-mode=Node,RBAC",
			"--enable-admission-plugins=NodeRestriction", "--allow-privileged=true", "--service-account-issuer=https://kubernetes.default.svc",
			"--service-account-key-file=" + account, "--service-account-signing-key-file=" + account,
			"--kubelet-preferred-address-types=InternalIP", // the name of the node does not resolve
			"--profiling=false", "--v=1",
		}},
		{args: []string{
			"kube-controller-manager", kubeconfig("controllers"), "--master=" + server, "--leader-elect=false", "--secure-port=0", "--v=1",
			"--service-account-private-key-file=" + account, "--root-ca-file=" + n.filePath("pki", "apiserver.crt"),
			"--flex-volume-plugin-dir=" + n.filePath("kubelet", "plugins"), "--node-monitor-grace-period=40s", // ten times the usual interval of a kubelet
		}},
		{args: []string{"kube-scheduler", kubeconfig("scheduler"), "--leader-elect=false", "--secure-port=0", "--v=1"}},
		{args: []string{
			"kubelet", kubeconfig("node"), "--config=" + n.filePath("kubelet.yaml"), "--root-dir=" + n.filePath("kubelet"), "--cert-dir=" + n.filePath("pki", "kubelet"),
			"--hostname-override=" + nodeName, "--node-ip=" + n.Address, "--v=2",
		}},
		{args: []string{
			"kube-proxy", kubeconfig("proxy"), "--proxy-mode=nftables", "--cluster-cidr=" + n.Pods, "--hostname-override=" + nodeName,
			"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0",
			"--healthz-bind-address=127.0.0.1:10256", "--metrics-bind-address=127.0.0.1:10249", "--v=1",
		}},
	}
}

const etcdURL = "http://127.0.0.1:2379"

// writeConfig writes the configuration of the programs.
func (n *nodeConfig) writeConfig() error {
	for _, dir := range []string{"log", "run", "hold", "pki", "pods", "kubelet", "cni", "etcd"} {
		if err := os.MkdirAll(n.filePath(dir), 0o700); err != nil {
			return err
		}
	}
	key, err := accountKey()
	if err != nil {
		return err
	}
	files := map[string][]byte{"pki/account.key": key}
	users := []struct{ user, token, name, group string }{
		{"admin", n.Token, "admin", "system:masters"},
		{"controllers", n.ControllerToken, "system:kube-controller-manager", "system:masters"},
		{"scheduler", n.SchedulerToken, "system:kube-scheduler", ""},
		{"node", n.NodeToken, "system:node:" + nodeName, "system:nodes"},
		{"proxy", n.ProxyToken, "system:kube-proxy", ""},
	}
	var tokens bytes.Buffer
	for _, u := range users {
		fmt.Fprintf(&tokens, "%s,%s,%s", u.token, u.name, u.user)
		if u.group != "" {
			fmt.Fprintf(&tokens, ",%q", u.group)
		}
		fmt.Fprintln(&tokens)
		config, err := n.makeKubeconfig(u.token)
		if err != nil {
			return err
		}
		files["pki/"+u.user+".kubeconfig"] = config
	}
	files["pki/tokens.csv"] = tokens.Bytes()
	for name, text := range map[string]string{"containerd.toml": containerdToml, "cni/10-bridge.conflist": cniList, "kubelet.yaml": kubeletYaml} {
		var out bytes.Buffer
		t, err := template.New(name).Parse(text)
		if err == nil {
			err = t.Execute(&out, n)
		}
		if err != nil {
			return err
		}
		files[name] = out.Bytes()
	}
	for name, data := range files {
		if err := os.WriteFile(n.filePath(filepath.FromSlash(name)), data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// makeKubeconfig returns a kubeconfig for a user, which does not verify the API server's certificate.
func (n *nodeConfig) makeKubeconfig(token string) ([]byte, error) {
	named := func(what string, value any) []any { return []any{map[string]any{"name": "x", what: value}} }
	return json.Marshal(map[string]any{ // JSON is YAML
		"apiVersion": "v1", "kind": "Config", "current-context": "x",
		"clusters": named("cluster", map[string]any{"server": "https://" + n.Address + ":6443", "insecure-skip-tls-verify": true}),
		"users":    named("user", map[string]any{"token": token}),
		"contexts": named("context", map[string]any{"cluster": "x", "user": "x"}),
	})
}

const containerdToml = `version = 2
root = "{{.Dir}}/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.internal.v1.tracing"]
[grpc]
  address = "{{.Dir}}/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{{.Dir}}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{{.Dir}}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
`

const cniList = `{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "pods0", "isGateway": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "{{.Dir}}/addresses", "ranges": [[{"subnet": "{{.Pods}}"}]], "routes": [{"dst": "0.0.0.0/0"}]}}
]}
`

// Images come from registries of the tests, and are never removed. Pods are not evicted for lack of
// disk space, since other programs use the disk too.
const kubeletYaml = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: {{.Address}}
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
cgroupRoot: /{{.Cgroup}}
failCgroupV1: false
failSwapOn: false
containerRuntimeEndpoint: unix://{{.Dir}}/containerd.sock
podLogsDir: {{.Dir}}/pods
volumePluginDir: {{.Dir}}/kubelet/plugins
makeIPTablesUtilChains: false
enforceNodeAllocatable: ["none"]
evictionHard: {memory.available: "100Mi", nodefs.available: "1%", imagefs.available: "1%"}
imageGCHighThresholdPercent: 100
imageMinimumGCAge: 24h
nodeStatusUpdateFrequency: 4s
resolvConf: ""
maxPods: 250
`
