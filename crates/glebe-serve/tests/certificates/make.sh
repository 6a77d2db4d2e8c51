#!/bin/sh
# Makes the certificates of the tests again, with OpenSSL. They end in the year 2126, so the tests
# need no openssl. ca.pem signs server.pem (localhost, 127.0.0.1), other.pem (the same names) and
# client.pem. A .key file is the private key of the .pem file.
set -eu
cd "$(dirname "$0")"
key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1.key"; }
key ca
openssl req -x509 -key ca.key -days 36500 -subj "/CN=Tests of glebe" -out ca.pem \
    -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign
for name in server other client; do
    key "$name"
    openssl req -new -key "$name.key" -subj "/CN=$name" |
        openssl x509 -req -CA ca.pem -CAkey ca.key -days 36500 -out "$name.pem" -extfile names
done
rm ca.key
