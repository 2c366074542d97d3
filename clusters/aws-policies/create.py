"""Once for an AWS account, by an administrator: the bucket of results and the roles of aws.yaml.

    python clusters/aws-policies/create.py my-bucket us-east-1

    worker.json     both roles: results in the bucket
    head.json       triplu-ray-head too: what Ray's autoscaler asks of EC2
    launcher.json   no role: for whoever runs `ray up`, if that is not an administrator

The policies name the cluster, the machine types and the bucket: change them with aws.yaml, and run
this again. What is there already stays.
"""

import contextlib
import json
import sys
from pathlib import Path

import boto3

POLICIES = Path(__file__).parent
TRUST = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Allow",
            "Action": "sts:AssumeRole",
            "Principal": {"Service": "ec2.amazonaws.com"},
        }
    ],
}


def main(bucket: str, region: str) -> None:
    """Create what is missing and set the policies; raises botocore's ClientError if refused."""
    s3, iam = boto3.client("s3", region), boto3.client("iam", region)
    there = iam.exceptions.EntityAlreadyExistsException
    # The first region has no name here, for it was there before regions had names.
    place = {} if region == "us-east-1" else {"LocationConstraint": region}
    with contextlib.suppress(s3.exceptions.BucketAlreadyOwnedByYou):
        s3.create_bucket(Bucket=bucket, **({"CreateBucketConfiguration": place} if place else {}))
    for role in ("triplu-ray-head", "triplu-ray-worker"):
        with contextlib.suppress(there):
            iam.create_role(RoleName=role, AssumeRolePolicyDocument=json.dumps(TRUST))
        with contextlib.suppress(there):
            iam.create_instance_profile(InstanceProfileName=role)
        # A profile holds one role, so this says whether it has it already.
        with contextlib.suppress(iam.exceptions.LimitExceededException):
            iam.add_role_to_instance_profile(InstanceProfileName=role, RoleName=role)
        store = (POLICIES / "worker.json").read_text().replace("my-bucket", bucket)
        iam.put_role_policy(RoleName=role, PolicyName="store", PolicyDocument=store)
    autoscaler = (POLICIES / "head.json").read_text()
    iam.put_role_policy(
        RoleName="triplu-ray-head", PolicyName="autoscaler", PolicyDocument=autoscaler
    )
    # An account that ever ran a spot instance has this role, and says so as of a wrong input.
    with contextlib.suppress(there, iam.exceptions.InvalidInputException):
        iam.create_service_linked_role(AWSServiceName="spot.amazonaws.com")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python clusters/aws-policies/create.py BUCKET REGION")
    main(*sys.argv[1:])
