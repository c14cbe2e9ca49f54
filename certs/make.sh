#!/bin/sh
# Makes a CA and a serving certificate for a Service: make.sh NAMESPACE SERVICE FOLDER
# The CA's key stays in FOLDER: keep it where nobody else reads it, or delete it.
set -eu
if [ $# -ne 3 ]; then
    sed -n 's/^# //p' "$0" >&2
    exit 2
fi
name=$2.$1.svc
umask 077
mkdir -p "$3"
cd "$3"
if [ ! -e ca.key ]; then
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 -subj "/CN=$name CA $(date +%F)" \
        -addext "basicConstraints=critical,CA:TRUE,pathlen:0" -addext "keyUsage=critical,keyCertSign,cRLSign" \
        -keyout ca.key -out ca.crt
fi
openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=$name" -keyout tls.key -out tls.csr
printf 'subjectAltName=DNS:%s\nkeyUsage=critical,digitalSignature\nextendedKeyUsage=serverAuth\n' "$name" >tls.ext
openssl x509 -req -in tls.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 -extfile tls.ext -out tls.crt
rm tls.csr tls.ext
openssl verify -CAfile ca.crt tls.crt
