#!/usr/bin/env bash
# Once for an AWS account, by someone with administrator's rights: the bucket of results, and the
# roles of clusters/aws.yaml with the least that works.
#
#   bash clusters/aws-policies/create.sh my-bucket
#
#   worker.json     both roles: results in the bucket
#   head.json       triplu-ray-head too: what Ray's autoscaler asks of EC2
#   launcher.json   no role: for whoever runs `ray up`, if that is not an administrator
#
# The policies name the cluster, the machine types and the bucket; change them with clusters/aws.yaml.
set -euo pipefail
bucket=$1
cd "$(dirname "$0")"

store_policy=$(sed "s/my-bucket/$bucket/" worker.json)
trust='{
  "Version": "2012-10-17",
  "Statement": [{
    "Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "ec2.amazonaws.com"}
  }]
}'

aws s3 mb "s3://$bucket"
for role in triplu-ray-head triplu-ray-worker; do
  aws iam create-role --role-name "$role" --assume-role-policy-document "$trust"
  aws iam put-role-policy --role-name "$role" --policy-name store --policy-document "$store_policy"
  aws iam create-instance-profile --instance-profile-name "$role"
  aws iam add-role-to-instance-profile --instance-profile-name "$role" --role-name "$role"
done
aws iam put-role-policy --role-name triplu-ray-head --policy-name autoscaler \
  --policy-document file://head.json
# An account has this one already if it ever ran a spot instance.
aws iam create-service-linked-role --aws-service-name spot.amazonaws.com || true
