package main

import (
	"net"
	"os"

	"github.com/urfave/cli/v3"
)

// secretVariable names what writers and routers show one another. It comes from the
// environment only: an argument can be read by everybody on the machine, and a bucket by
// everybody who may read data.
const secretVariable = "GRANARY_SECRET"

// secretMin is the least length of a secret, in bytes.
const secretMin = 16

// sharedSecret is the secret between writers and routers; "" when there is none.
func sharedSecret() (string, error) {
	secret := os.Getenv(secretVariable)
	if secret != "" && len(secret) < secretMin {
		return "", usage("%s has %d characters, at least %d are needed: export %s=$(openssl rand -hex 32)", secretVariable, len(secret), secretMin, secretVariable)
	}
	return secret, nil
}

// onThisMachine reports whether only this machine reaches the address of a flag.
func onThisMachine(cmd *cli.Command, flag string) (bool, error) {
	addr := cmd.String(flag)
	name, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false, usage("--%s %q: %v: an address is HOST:PORT, such as 127.0.0.1:27017", flag, addr, err)
	}
	ip := net.ParseIP(name)
	return name == "localhost" || ip != nil && ip.IsLoopback(), nil
}

// loopbackOnly refuses an address beyond this machine: nobody is asked for a password yet.
func loopbackOnly(cmd *cli.Command, flag string) error {
	addr := cmd.String(flag)
	if addr == "" || cmd.Bool("insecure") {
		return nil
	}
	local, err := onThisMachine(cmd, flag)
	if err != nil || local {
		return err
	}
	return usage("--%s %s is not on this machine, and there is no authentication yet: use 127.0.0.1, or say --insecure", flag, addr)
}

// secretOrLoopback refuses an address beyond this machine when there is no secret.
func secretOrLoopback(cmd *cli.Command, flag, secret string) error {
	local, err := onThisMachine(cmd, flag)
	if err != nil || local || secret != "" || cmd.Bool("insecure") {
		return err
	}
	return usage("--%s %s is not on this machine, and there is no secret: give all writers and routers the same one, export %s=$(openssl rand -hex 32), or say --insecure",
		flag, cmd.String(flag), secretVariable)
}

// announced is the address that others are told: --address, or where we listen when that is
// an address.
func announced(cmd *cli.Command, l net.Listener) (string, error) {
	if a := cmd.String("address"); a != "" {
		if _, _, err := net.SplitHostPort(a); err != nil {
			return "", usage("--address %q: %v: an address is HOST:PORT, such as 10.0.0.7:7017", a, err)
		}
		return a, nil
	}
	if at, ok := l.Addr().(*net.TCPAddr); ok && at.IP.IsUnspecified() {
		return "", usage("--listen %s is every address of this machine: say where others reach it, such as --address 10.0.0.7:%d", cmd.String("listen"), at.Port)
	}
	return l.Addr().String(), nil
}
